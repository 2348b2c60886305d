"""Machine time: what is kept is what was measured, and the page repeats it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmlab.labs.timing import (
    BEGIN,
    END,
    LIMIT_S,
    CellTime,
    LabTime,
    markdown,
    read,
    rows,
    time_lab,
    with_times,
    write,
    write_page,
)

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "data" / "results" / "labs.json"


def lab(name: str, seconds: float) -> LabTime:
    return LabTime(name, seconds, False, (CellTime("Run", seconds / 2), CellTime("Look", 1.0)))


def test_a_new_time_takes_the_place_of_the_old_one_and_leaves_the_others(tmp_path):
    path = tmp_path / "results" / "labs.json"
    assert read(path) == {}
    write(path, with_times({}, [lab("02_b", 20.0), lab("01_a", 10.0)]))
    write(path, with_times(read(path), [lab("02_b", 44.0)]))
    assert [row[:2] for row in rows(read(path))] == [["01_a", "10"], ["02_b", "44"]]
    assert rows(read(path))[1][2] == "Run 22 s; Look 1 s"
    assert read(path)["machine"]["usable_cores"] >= 1


def test_the_table_goes_between_its_marks_and_nowhere_else(tmp_path):
    page, content = tmp_path / "page.md", with_times({}, [lab("01_a", 10.0)])
    page.write_text(f"before\n{BEGIN}\nold table\n{END}\nafter\n")
    assert write_page(page, content)
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\nMeasured on ")
    assert text.endswith(f"\n{END}\nafter\n")
    assert "old table" not in text
    assert "| 01_a | 10 | Run 5 s; Look 1 s |" in text
    page.write_text("no marks")
    assert not write_page(page, content)
    assert page.read_text() == "no marks"


def test_the_instructors_page_shows_what_was_kept_and_every_lab_is_within_the_limit():
    content = read(KEPT)
    page = (ROOT / "solutions" / "README.md").read_text(encoding="utf-8")
    assert markdown(content) in page
    assert {p.stem for p in (ROOT / "solutions").glob("[0-9]*.ipynb")} == set(content["labs"])
    for name, entry in content["labs"].items():
        assert entry["seconds"] <= LIMIT_S, name
        assert not entry["fast"], name


def notebook(path: Path, *cells: str) -> Path:
    made = [
        {"cell_type": "markdown", "id": "m", "metadata": {}, "source": "# A lab\n\n## Slow part"},
        *(
            {
                "cell_type": "code",
                "id": f"c{i}",
                "metadata": {},
                "source": source,
                "outputs": [],
                "execution_count": None,
            }
            for i, source in enumerate(cells)
        ),
    ]
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    content = {
        "cells": made,
        "metadata": {"kernelspec": spec},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path.write_text(json.dumps(content))
    return path


@pytest.mark.slow
def test_a_run_is_timed_by_cell_under_its_heading_in_a_store_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMLAB_DATA_DIR", str(tmp_path / "mine"))
    path = notebook(
        tmp_path / "01_a.ipynb",
        "import os; assert os.environ['LLMLAB_DATA_DIR'] != os.path.join(os.getcwd(), 'mine')",
        "import time; time.sleep(0.6)",
    )
    found = time_lab(path)
    assert found.lab == "01_a"
    assert found.seconds >= 0.6
    assert found.slowest[0].under == "Slow part"
    assert found.slowest[0].seconds >= 0.6
    assert not (tmp_path / "mine").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "limit_s", "said"),
    [("1 / 0", 60, "ZeroDivisionError"), ("import time; time.sleep(60)", 1, "over 1 s")],
)
def test_a_lab_that_fails_or_hangs_is_an_error_with_its_name(tmp_path, cell, limit_s, said):
    with pytest.raises(RuntimeError, match=f"01_a: .*{said}"):
        time_lab(notebook(tmp_path / "01_a.ipynb", cell), cell_limit_s=limit_s)

"""What is shipped is what the source says. `make notebooks` runs all of it and reads the scores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmlab.labs.build import build
from tests.labs.cells import run_cells
from tests.labs.scores import faults

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "labs" / "source").glob("[0-9]*.py"))


def test_the_built_files_are_what_the_source_says():
    assert SOURCES
    for source in SOURCES:
        for folder, data in zip(("labs", "solutions"), build(source), strict=True):
            assert (ROOT / folder / f"{source.stem}.ipynb").read_bytes() == data, source.stem


def test_a_lab_that_scores_or_a_solution_that_does_not_is_a_fault(tmp_path):
    for labs, solutions, wrong in (
        (["not answered yet"], ["correct"], 0),
        (["not answered yet", "correct"], ["correct"], 1),
        (["not answered yet"], ["correct", "incorrect"], 1),
        ([], [], 2),
    ):
        (tmp_path / "labs.txt").write_text("\n".join(labs))
        (tmp_path / "solutions.txt").write_text("\n".join(solutions))
        assert len(faults(tmp_path)) == wrong, (labs, solutions)


@pytest.mark.slow
def test_a_wrong_solution_fails(tmp_path):
    """The runs above can fail: one changed number in a solution is noticed."""
    notebook = json.loads((ROOT / "solutions" / "01_two_phases.ipynb").read_text())
    for cell in notebook["cells"]:
        text = "".join(cell["source"]).replace('numbers["prefill"]', '0 * numbers["prefill"]')
        cell["source"] = text.splitlines(keepends=True)
    path = tmp_path / "wrong.ipynb"
    path.write_text(json.dumps(notebook))
    assert "incorrect" in run_cells(path, tmp_path).states

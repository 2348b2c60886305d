"""A results file: nothing lost, nothing twice, nothing mixed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llmlab.executor import Differs, Results


def open_(path: Path, **changes: Any) -> Results:
    given = {"kind": "squares", "code": "1", "grid": {"axes": {"x": [1, 2]}}, "cells": 4}
    return Results.open(path, **{**given, **changes})


def written(path: Path, cells: dict[int, bool]) -> Path:
    with open_(path) as results:
        for cell, ok in cells.items():
            results.write(cell, {"ok": ok, "v": cell} if ok else {"ok": False, "error": "no"})
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


def test_a_file_goes_on_behind_its_last_cell(path):
    written(path, {2: True, 0: False})
    with open_(path) as results:
        assert list(results.done) == [1, 0, 1, 0]
        assert (results.count, results.failed, results.repaired) == (2, 1, False)
        results.write(1, {"ok": True})
        assert [line["cell"] for line in results.lines()] == [2, 0, 1]


def test_a_line_cut_off_by_a_kill_is_taken_away(path):
    whole = written(path, {0: True}).read_bytes()
    last = written(path, {1: True}).read_bytes()[len(whole) :]
    for kept in range(1, len(last)):
        path.write_bytes(whole + last[:kept])
        with open_(path) as results:
            assert results.repaired
            assert list(results.done) == [1, 0, 0, 0]
        assert path.read_bytes() == whole


def test_a_header_cut_off_by_a_kill_is_begun_anew(path):
    head = written(path, {}).read_bytes()
    for kept in range(len(head)):
        path.write_bytes(head[:kept])
        with open_(path) as results:
            assert results.count == 0
        assert path.read_bytes() == head


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"grid": {"axes": {"x": [1, 3]}}}, r"another grid \(axes.x: \[1, 2\] there, \[1, 3\] now"),
        ({"code": "2"}, "other code"),
        ({"kind": "cubes"}, "holds squares"),
        ({"cells": 5}, "for 4 cells"),
    ],
)
def test_a_file_of_something_else_is_refused_and_left_as_it_is(path, changes, said):
    before = written(path, {0: True}).read_bytes()
    with pytest.raises(Differs, match=said) as refused:
        open_(path, **changes)
    assert "--overwrite" in str(refused.value)
    assert path.read_bytes() == before
    with open_(path, **changes, overwrite=True) as results:
        assert results.count == 0


def test_a_stranger_s_file_is_not_touched(path):
    path.write_text("my thesis")
    with pytest.raises(Differs, match="not a results file"):
        open_(path)
    assert path.read_text() == "my thesis"


def test_no_cell_is_there_twice(path):
    written(path, {0: True})
    with open_(path) as results, pytest.raises(ValueError, match="already"):
        results.write(0, {"ok": True})
    with path.open("a") as file:
        file.write('{"cell":0,"ok":true}\n')
    with pytest.raises(Differs, match=":3: cell 0 is there twice"):
        open_(path)


@pytest.mark.parametrize(
    "line",
    ["nonsense", "[]", "[" * 100_000, '{"cell":9,"ok":true}', '{"ok":true}', '{"cell":1}'],
    ids=range(6),
)
def test_a_line_that_is_none_is_named(path, line):
    written(path, {0: True})
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(Differs, match=r"run\.jsonl:3"):
        open_(path)


def test_failed_cells_can_be_forgotten(path):
    written(path, {0: True, 1: False, 2: True})
    with open_(path, retry_failed=True) as results:
        assert list(results.done) == [1, 0, 1, 0]
        results.write(1, {"ok": True})
    assert [json.loads(line).get("cell") for line in path.open()] == [None, 0, 2, 1]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX locks")
def test_two_runs_do_not_write_one_file(path):
    code = (
        "import sys; from llmlab.executor import Results\n"
        "Results.open(sys.argv[1], kind='squares', code='1', grid={'axes': {'x': [1, 2]}}, cells=4)"
    )
    with open_(path):
        other = subprocess.run(
            [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
        )
    assert "another run is writing it" in other.stderr
    open_(path).close()

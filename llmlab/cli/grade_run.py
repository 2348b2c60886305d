"""Grading a folder through the executor: every file a cell, resumable after a kill.

What has been graded is kept in `.grading.jsonl` in the folder of the grades until all is written.
It is gone on with only if roster, key, items, code and every file are still the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from llmlab.check import library
from llmlab.check.grade import Course, Grader, Row, compare, files_in, grade_cell, shown
from llmlab.executor import Differs, Results, Runner, code_version

KEPT = ".grading.jsonl"


def grade_rows(
    grader: Grader,
    course: Course,
    folder: Path,
    out: Path,
    runner: Runner,
    tick: Callable[[int], Any] = lambda done: None,
) -> list[Row]:
    """A row for every file in the order of `files_in`, compared with one another.

    tick: called with how many are done. out: an existing folder; its KEPT holds rows meanwhile.
    """
    files = files_in(folder, out)
    cells = [(str(path.absolute()), shown(path, folder)) for path in files]
    with _kept(out, grader, course, files, folder) as results:
        todo = ((i, cell) for i, cell in enumerate(cells) if not results.done[i])
        tick(results.count)
        with closing(runner.run(partial(grade_cell, course), todo)) as stream:
            for done in stream:
                row = done.value if done.ok else _failed(cells[done.cell][1], done.error)
                results.write(done.cell, {"ok": done.ok, "row": row})
                tick(results.count)
        rows = {line["cell"]: Row.from_json(line["row"]) for line in results.lines()}
    return compare(grader, [rows[i] for i in range(len(files))])


def forget(out: Path) -> None:
    """Take the kept rows away: the grades are written."""
    (out / KEPT).unlink(missing_ok=True)


def _failed(name: str, error: str | None) -> dict[str, Any]:
    return Row(name, reason=f"could not be graded ({error})").to_json()


def _kept(out: Path, grader: Grader, course: Course, files: list[Path], folder: Path) -> Results:
    """The rows kept so far, or none where anything has changed."""
    state = [(shown(p, folder), p.lstat().st_size, p.lstat().st_mtime_ns) for p in files]
    sheets = [path for kind in ("worksheets", "questions") for path in library.folders(kind)]
    content = sorted({path for sheet in sheets for path in sheet.rglob("*.yaml")})
    people = [(s.id, s.name, grader.students[s.id].fingerprint) for s in course.roster]
    asked: dict[str, Any] = {
        "kind": "grade",
        "code": code_version(("check",), tuple(content)),
        "grid": {
            "class": _digest(people),
            "files": _digest([[str(folder.absolute())], state]),
            "only": list(course.only),
        },
        "cells": len(files),
    }
    path = out / KEPT
    try:
        return Results.open(path, **asked)
    except Differs:
        return Results.open(path, **asked, overwrite=True)


def _digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()

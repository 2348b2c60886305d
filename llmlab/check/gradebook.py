"""What grading writes: grades.csv, items.csv, summary.html, grades.json; and what it keeps.

overrides.csv is the instructor's: it is made once, empty, and then only read. A row
`student,item,points,comment` puts the instructor's points in place of the automatic ones.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from llmlab.check import library
from llmlab.check.compare import ItemStatistics, item_statistics
from llmlab.check.csv_file import read_csv, write_csv
from llmlab.check.grade import Grader, Row
from llmlab.check.page import render

OVERRIDE_COLUMNS = ["student", "item", "points", "comment"]
Overrides = dict[str, dict[str, float]]


def read_overrides(path: Path, grader: Grader) -> Overrides:
    """The instructor's points by student and item; ValueError names the line that is wrong.

    Points for an item that exists but is not graded now (another worksheet's) wait in the file.
    """
    found: Overrides = {}
    if not path.exists():
        write_csv(path, OVERRIDE_COLUMNS, [])
        return found
    columns, rows = read_csv(path, *OVERRIDE_COLUMNS[:3])
    for number, cells in enumerate(rows, 2):
        if not any(cell.strip() for cell in cells):
            continue
        row = dict(zip(columns, cells, strict=False))
        student, item, given = (row.get(name, "").strip() for name in OVERRIDE_COLUMNS[:3])
        student = student.removeprefix("'")
        try:
            points = float(given)
        except ValueError:
            raise ValueError(f"{path}:{number}: points must be a number like 0.5") from None
        if not 0 <= points <= 1000:
            raise ValueError(f"{path}:{number}: points must be from 0 to 1000")
        if student not in grader.roster:
            raise ValueError(f"{path}:{number}: no student {student!r} in the roster")
        if item in grader.items or item in grader.questions:
            found.setdefault(student, {})[item] = points
        elif item not in library.items() and item not in library.questions():
            raise ValueError(f"{path}:{number}: no item {item!r}")
    return found


@dataclass(frozen=True)
class Points:
    """A row's points, kind by kind."""

    auto: float
    self: float
    instructor: float
    total: float


@dataclass(frozen=True)
class Gradebook:
    """All rows of a class and what follows from them."""

    grader: Grader
    rows: list[Row]
    overrides: Overrides

    @cached_property
    def statistics(self) -> list[ItemStatistics]:
        """Difficulty and discrimination of every item that somebody answered."""
        return item_statistics(self.grader, self.rows)

    def points(self, row: Row) -> Points:
        """Auto, self and instructor points apart; the total puts instructor's before auto."""
        grader, own = self.grader, self.overrides.get(row.id, {}) if row.graded else {}
        auto = {name: score * grader.points_of(name) for name, score in row.scores.items()}
        self_points = sum(s * grader.points_of(name) for name, s in row.self_scores.items())
        kept = sum(points for name, points in auto.items() if name not in own)
        instructor = sum(own.values())
        return Points(sum(auto.values()), self_points, instructor, kept + instructor)

    def missing(self) -> list[str]:
        """Names of the roster without a file that counts."""
        handed_in = {row.id for row in self.rows if row.graded}
        return [s.name for s in self.grader.roster.values() if s.id not in handed_in]

    def answered(self) -> list[str]:
        """Items that somebody answered, in their own order."""
        seen = {name for row in self.rows for name in row.scores}
        return [n for n in [*self.grader.items, *self.grader.questions] if n in seen]

    def possible(self) -> float:
        """Points of all items that are graded here, and of the questions that were answered."""
        names = {*self.grader.items, *self.answered()}
        return sum(self.grader.points_of(name) for name in names)

    def as_json(self) -> dict[str, Any]:
        """The whole as plain data."""
        return {
            "version": 1,
            "possible": self.possible(),
            "rows": [self._row_json(row) for row in self.rows],
            "missing": self.missing(),
            "items": [vars(s) for s in self.statistics],
        }

    def _row_json(self, row: Row) -> dict[str, Any]:
        points = self.points(row)
        return {
            "file": row.file,
            "status": "graded" if row.graded else "failed",
            "reason": row.reason,
            "student": row.id,
            "name": row.name,
            "counted": row.counted,
            **{name: round(value, 4) for name, value in vars(points).items()},
            "code_advisory": _code(row),
            "flags": row.flags,
            "items": {name: round(score, 4) for name, score in row.scores.items()},
        }


def _code(row: Row) -> str:
    passed = sum(row.code.values())
    return f"{passed} of {len(row.code)} (student's own kernel)" if row.code else ""


def write_all(book: Gradebook, out: Path) -> list[Path]:
    """Write the four files; overrides.csv is never written here."""
    answered, data = book.answered(), book.as_json()
    head = ["file", "status", "reason", "student", "name", "counted", "auto", "self", "instructor"]
    head += ["total", "possible", "code_advisory", "flags", *answered]
    lines = [
        [
            *(r[name] for name in head[:5]),
            "yes" if r["counted"] else "no",
            *(r[name] for name in ("auto", "self", "instructor", "total")),
            data["possible"],
            r["code_advisory"],
            "; ".join(r["flags"]),
            *(r["items"].get(name, "") for name in answered),
        ]
        for r in data["rows"]
    ]
    write_csv(out / "grades.csv", head, lines)
    write_csv(
        out / "items.csv",
        ["item", "answered", "difficulty", "discrimination"],
        (
            [s.item, s.answered, _figure(s.difficulty), _figure(s.discrimination)]
            for s in book.statistics
        ),
    )
    (out / "grades.json").write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
    (out / "summary.html").write_text(_summary(book, data), encoding="utf-8")
    return [out / name for name in ("grades.csv", "items.csv", "grades.json", "summary.html")]


def _figure(value: float | None) -> Any:
    return "" if value is None else round(value, 3)


def _summary(book: Gradebook, data: dict[str, Any]) -> str:
    rows = data["rows"]
    return render(
        "grades.html.j2",
        title="Grades",
        when=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        rows=rows,
        failed=[row for row in rows if row["status"] == "failed"],
        flagged=[row for row in rows if row["flags"]],
        counted=sum(row["counted"] for row in rows),
        roster=len(book.grader.roster),
        missing=data["missing"],
        possible=data["possible"],
        statistics=book.statistics,
    )

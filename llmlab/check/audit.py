"""Checking all content at once: every file's problems, draws for many students, coverage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmlab.check import library
from llmlab.check.question import NumericQuestion
from llmlab.check.sheets import every_numeric
from llmlab.check.student import Student
from llmlab.check.worksheet import Item, trouble
from llmlab.check.yaml_lines import ContentError, read
from llmlab.data import data_path


@dataclass
class Audit:
    """What is there, what is wrong with it, and what no item or question covers."""

    items: int = 0
    questions: int = 0
    misconceptions: int = 0
    wrong_options: int = 0
    uncovered: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return dict(vars(self))


def curriculum() -> dict[str, str]:
    """Ids and titles of what the lab teaches."""
    data, _ = read(data_path("curriculum.yaml"))
    return {str(key): str(value) for key, value in data.items()}


def audit(students: int = 100) -> Audit:
    """Check everything; `students` names are drawn for each item."""
    found = Audit()
    try:
        library.folders("worksheets")
    except ContentError as error:
        found.problems = [str(error)]
        return found
    try:
        items, bank = list(library.items().values()), list(library.questions().values())
    except ContentError:
        # Something is broken: go file by file, so that every problem is told, not the first.
        found.problems = list(_file_problems())
        return found
    ids = set(curriculum())
    numeric = [*(i.spec for i in items), *(q for q in bank if isinstance(q, NumericQuestion))]
    found.items, found.questions = len(items), len(bank)
    found.misconceptions = sum(len(spec.misconceptions) for spec in numeric)
    found.wrong_options = sum(not o.correct for q in bank for o in getattr(q, "options", []))
    covered = {c for i in items for c in i.covers} | {c for q in bank for c in q.covers}
    found.uncovered = [name for name in curriculum() if name not in covered]
    unknown = sorted(covered - ids)
    if unknown:
        found.problems.append(f"covers: {', '.join(unknown)} are not in data/curriculum.yaml")
    both = {i.id for i in items} & {q.id for q in bank}
    found.problems += [f"{name} is an item and a question" for name in sorted(both)]
    for item in every_numeric():
        found.problems += list(draw_problems(item, students))
    return found


def draw_problems(item: Item, students: int) -> Iterator[str]:
    """Whether an item's draws are legal for many students; at most one problem is told."""
    for number in range(students):
        student = Student(f"check {number}")
        try:
            reason = trouble(item.spec, item.parameters_for(student))
        except ValueError as error:
            reason = str(error)
        if reason:
            yield f"{item.id}: {reason}"
            return


def _file_problems() -> Iterator[str]:
    for kind in ("worksheets", "questions"):
        where = library.folders(kind)
        files = [path for folder in where for path in sorted(folder.glob("*.yaml"))]
        told = [problem for path in files for problem in _problems_of(path, kind, where)]
        yield from told
        try:
            library.worksheets() if kind == "worksheets" else library.questions()
        except ContentError as error:  # of one file, and told; or of two that clash
            yield from (problem for problem in str(error).split("\n") if problem not in told)


def _problems_of(path: Path, kind: str, where: tuple[Path, ...]) -> Iterator[str]:
    try:
        if path.parent != where[0] and library.is_question_file(path) != (kind == "questions"):
            return
        library.read_worksheet(path) if kind == "worksheets" else library.read_questions(path)
    except ContentError as error:
        yield from str(error).split("\n")

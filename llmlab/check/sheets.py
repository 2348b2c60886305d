"""All numbers of one student, as the sheet that an instructor hands out."""

from __future__ import annotations

from typing import Any

from llmlab.check import library
from llmlab.check.choose import as_item
from llmlab.check.question import NumericQuestion
from llmlab.check.student import Student
from llmlab.check.worksheet import Item


def numbers_of(student: Student) -> dict[str, dict[str, Any]]:
    """Each worksheet's shared numbers and each item's own, by worksheet or item id."""
    numbers: dict[str, dict[str, Any]] = {}
    for item in every_numeric():
        values = item.parameters_for(student)
        shared = item.shared.draws.names()
        own = {name: value for name, value in values.items() if name not in shared}
        if shared:
            numbers[item.group] = {name: values[name] for name in sorted(shared)}
        if own:
            numbers[item.id] = own
    return numbers


def every_numeric() -> list[Item]:
    """Worksheet items and numeric questions."""
    bank = (q for q in library.questions().values() if isinstance(q, NumericQuestion))
    return [*library.items().values(), *(as_item(q) for q in bank)]

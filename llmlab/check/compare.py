"""Comparing hand-ins of a class: answers for someone else's numbers, identical prose, statistics.

A flag is a reason to look, never a proof: numbers come from short lists, so a wrong answer can be
right for somebody by chance.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmlab.check.answer import read_number
from llmlab.check.student import CURRICULUM, Student
from llmlab.check.worksheet import Item, right_value

if TYPE_CHECKING:  # grade.py calls what is here
    from llmlab.check.grade import Grader, Row


def mark_counted(rows: list[Row]) -> None:
    """Of several files of one student the latest counts; the others are flagged."""
    latest: dict[str, Row] = {}
    for row in rows:
        if row.graded:
            best = latest.get(row.id)
            latest[row.id] = row if best is None or row.created >= best.created else best
    for row in rows:
        if row.graded:
            row.counted = latest[row.id] is row
            if not row.counted:
                chosen = latest[row.id]
                why = "is later" if chosen.created > row.created else "has the same time"
                row.flags.append(f"not counted: {chosen.file} {why}")
                chosen.flags.append(f"counted; there is {row.file} too")


class _RightValues:
    """Right answers of everybody for one item, sorted, to look one up."""

    def __init__(self, item: Item, people: list[Student]) -> None:
        found: dict[float, list[str]] = {}
        for person in people:
            value = float(right_value(item.spec, item.parameters_for(person)))
            found.setdefault(value, []).append(person.name)
        self.values = sorted(found)
        self.names = found
        self.item = item

    def whose(self, answer: float) -> list[str]:
        """Names of those for whom this answer is right."""
        tolerance = self.item.spec.tolerance
        if tolerance.interval:
            return []  # its formulas need each student's own numbers
        at = bisect_left(self.values, answer)
        near = self.values[max(0, at - 1) : at + 2]
        for value in sorted(near, key=lambda value: abs(value - answer)):
            if tolerance.accepts(answer, value, {}):
                return self.names[value]
        return []


def flag_same_answers(grader: Grader, rows: list[Row]) -> None:
    """Flag answers that are wrong for the student and right for another student's numbers."""
    people = [*grader.students.values(), CURRICULUM]
    tables: dict[str, _RightValues] = {}
    for row in rows:
        others: Counter[str] = Counter()
        matched: list[str] = []
        for name, answer in row.wrong:
            if name not in tables:
                tables[name] = _RightValues(grader.items[name], people)
            try:
                value = float(read_number(answer, grader.items[name].unit).value)
            except (ValueError, OverflowError):
                continue
            whose = [other for other in tables[name].whose(value) if other != row.id]
            if whose and name not in matched:
                matched.append(name)
                others.update(whose)
        if matched:
            row.flags.append(_same_text(grader, matched, others))


def _same_text(grader: Grader, matched: list[str], others: Counter[str]) -> str:
    top = max(others.values())
    names = sorted(
        grader.roster[n].name if n else "the curriculum" for n, c in others.items() if c == top
    )
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    count = f"{top} answer{'s' if top > 1 else ''} right for the numbers of"
    return f"{count} {', '.join(names[:2])}{more}: {', '.join(matched[:4])}"


def flag_prose(rows: list[Row]) -> None:
    """Flag equal prose of different students."""
    owners: dict[str, dict[str, str]] = {}
    for row in rows:
        for mark in row.prose:
            owners.setdefault(mark, {})[row.id] = row.name
    for row in rows:
        for mark, question in row.prose.items():
            others = sorted(name for who, name in owners[mark].items() if who != row.id)
            if others:
                row.flags.append(f"identical prose for {question}: {', '.join(others[:3])}")


@dataclass(frozen=True)
class ItemStatistics:
    """Difficulty: mean share of points (low = hard). Discrimination: correlation of the item
    with the rest of the total, None where nobody differs.
    """

    item: str
    answered: int
    difficulty: float
    discrimination: float | None


def item_statistics(grader: Grader, rows: list[Row]) -> list[ItemStatistics]:
    """Of every item that somebody answered, over the counted rows; unanswered scores 0."""
    counted = [row for row in rows if row.counted]
    totals = [
        sum(score * grader.points_of(name) for name, score in row.scores.items()) for row in counted
    ]
    found = []
    for name in [*grader.items, *grader.questions]:
        answered = sum(name in row.scores for row in counted)
        if not answered:
            continue
        points = grader.points_of(name)
        own = [row.scores.get(name, 0.0) for row in counted]
        rest = [total - score * points for total, score in zip(totals, own, strict=True)]
        found.append(ItemStatistics(name, answered, sum(own) / len(own), _correlation(own, rest)))
    return found


def _correlation(xs: list[float], ys: list[float]) -> float | None:
    n = len(xs)
    mx, my = sum(xs) / n, sum(ys) / n
    sxx = sum((x - mx) ** 2 for x in xs)
    syy = sum((y - my) ** 2 for y in ys)
    if n < 3 or sxx <= 1e-12 or syy <= 1e-12:
        return None
    both = zip(xs, ys, strict=True)
    covariance = sum((x - mx) * (y - my) for x, y in both)
    return float(covariance / (sxx * syy) ** 0.5)

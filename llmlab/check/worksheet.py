"""Worksheets: a story with its numbers, and the items that ask about it.

    title: A first token's wait
    intro: optional text, with {braces}
    parameters, together, require   shared by all items (see item.py)
    items: [...]

The file's name is the worksheet's name: data/worksheets/b11.yaml is `load_worksheet("b11")`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

from pydantic import Field

from llmlab.check import formula
from llmlab.check.item import (
    Draws,
    NumericSpec,
    Problem,
    Text,
    Tolerance,
    fill,
    formula_trouble,
)
from llmlab.check.student import CURRICULUM, Student, choose

Values = dict[str, Any]
TURNS = 200
KEPT_STUDENTS = 2000


class WorksheetSpec(Draws):
    """A worksheet's file."""

    title: Text
    intro: str = ""
    items: Annotated[list[NumericSpec], Field(min_length=1)]

    def problems(self) -> list[Problem]:
        """What the types cannot see."""
        found: list[Problem] = []
        for i, item in enumerate(self.items):
            both = self.names() & item.names()
            if both:
                found.append((("items", i), f"the worksheet has parameters {sorted(both)} already"))
            for at, text in item.problems(self.names() | item.names()):
                found.append((("items", i, *at), text))
        for i, text in enumerate(self.require):
            if wrong := formula_trouble(text, self.names()):
                found.append((("require", i), wrong))
        return found


class Shared:
    """Numbers that the items of one worksheet have in common."""

    def __init__(self, group: str, draws: Draws, kin: tuple[NumericSpec, ...] = ()) -> None:
        self.group = group
        self.draws = draws
        self.kin = kin  # items that have only these numbers
        self._drawn: dict[tuple[bytes, str], Values] = {}

    def values_for(self, student: Student) -> Values:
        """The first draw that suits every item that has no numbers of its own."""
        who = (student.key, student.name)
        found = self._drawn.get(who)
        if found is None:
            if len(self._drawn) >= KEPT_STUDENTS:
                self._drawn.clear()
            found = self._drawn[who] = self._first_legal(student)
        return found

    def _first_legal(self, student: Student) -> Values:
        for turn in range(TURNS):
            values = _drawn(self.draws, student, self.group, turn)
            scope = numbers_only(values)
            if all(formula.evaluate(text, scope) for text in self.draws.require) and all(
                trouble(spec, values) is None for spec in self.kin
            ):
                return values
        raise ValueError(f"{self.group}: no legal numbers in {TURNS} draws; widen its lists")


@dataclass(frozen=True)
class Item:
    """One item, bound to the parameters it shares with its worksheet."""

    spec: NumericSpec
    shared: Shared

    @property
    def id(self) -> str:
        """E.g. "B11.ttft"."""
        return self.spec.id

    @property
    def group(self) -> str:
        """The worksheet's name (a question's own id)."""
        return self.shared.group

    @property
    def covers(self) -> tuple[str, ...]:
        """Curriculum ids."""
        return tuple(self.spec.covers)

    @property
    def unit(self) -> str:
        """The answer's unit; "" for a plain number."""
        return self.spec.unit

    def parameters_for(self, student: Student | None = None) -> Values:
        """The student's numbers, shared ones first; the curriculum's own without a name."""
        student = student or CURRICULUM
        own = {**first_values(self.shared.draws), **first_values(self.spec)}
        if not student.name:
            return own
        if student.sheet is not None:
            given = {**student.sheet.get(self.group, {}), **student.sheet.get(self.id, {})}
            return {name: given.get(name, value) for name, value in own.items()}
        shared = self.shared.values_for(student)
        if not self.spec.names():
            return dict(shared)
        for turn in range(TURNS):
            values = {**shared, **_drawn(self.spec, student, self.id, turn)}
            if trouble(self.spec, values) is None:
                return values
        raise ValueError(f"{self.id}: no legal numbers in {TURNS} draws; widen its lists")

    def prompt_for(self, student: Student | None = None) -> str:
        """The question with the student's numbers in it."""
        return self.fill(self.spec.prompt, self.parameters_for(student))

    def hints_for(self, student: Student | None = None) -> list[str]:
        """Up to three hints, each deeper than the one before."""
        values = self.parameters_for(student)
        return [self.fill(text, values) for text in self.spec.hints]

    def fill(self, text: str, values: Values) -> str:
        """A text of this item with numbers and units in its braces."""
        every = {**self.shared.draws.parameters, **self.spec.parameters}
        return fill(text, values, {name: p.unit for name, p in every.items()})

    def __repr__(self) -> str:
        return f"Item({self.id!r})"


@dataclass(frozen=True)
class Worksheet:
    """A worksheet: `name`, `title`, `items`."""

    name: str
    spec: WorksheetSpec
    items: tuple[Item, ...]

    @property
    def title(self) -> str:
        """One line."""
        return self.spec.title

    def intro_for(self, student: Student | None = None) -> str:
        """The story that the items share, with the student's numbers."""
        values = self.items[0].parameters_for(student)
        return self.items[0].fill(self.spec.intro, values)

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    def __repr__(self) -> str:
        return f"Worksheet({self.name!r}, {len(self.items)} items)"


def first_values(draws: Draws) -> Values:
    """The curriculum's own numbers."""
    values: Values = {name: p.first for name, p in draws.parameters.items()}
    for row in draws.together:
        values.update(row.first)
    return values


def _drawn(draws: Draws, student: Student, group: str, turn: int) -> Values:
    values: Values = {
        name: choose(student, group, name, p.draw, turn) for name, p in draws.parameters.items()
    }
    for i, row in enumerate(draws.together):
        values.update(choose(student, group, f"row{i}", row.draw, turn))
    return values


def numbers_only(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that formulas may use."""
    return {
        name: formula.exact(value) for name, value in values.items() if not isinstance(value, str)
    }


def right_value(spec: NumericSpec, values: Mapping[str, Any]) -> Fraction | float:
    """The right answer for these numbers, in the item's unit."""
    return formula.evaluate(spec.answer, numbers_only(values))


def wrong_values(
    spec: NumericSpec, values: Mapping[str, Any], right: Fraction | float
) -> list[Fraction | float]:
    """What each misconception makes of these numbers."""
    scope = {**numbers_only(values), "answer": right}
    return [formula.evaluate(wrong.formula, scope) for wrong in spec.misconceptions]


_NEAR = Tolerance(relative=0.02)


def recognising(tolerance: Tolerance) -> Tolerance:
    """How near an answer must be to a misconception's number to be recognised as it."""
    return _NEAR if tolerance.interval or tolerance.order_of_magnitude else tolerance


def trouble(spec: NumericSpec, values: Mapping[str, Any]) -> str | None:
    """Why these numbers cannot be used: illegal, or a wrong answer that would pass for another."""
    scope = numbers_only(values)
    try:
        for text in spec.require:
            if not formula.evaluate(text, scope):
                return f"require {text!r} does not hold"
        right = right_value(spec, values)
        wrong = wrong_values(spec, values, right)
    except formula.FormulaError as error:
        return str(error)
    return _collision(spec, scope, right, wrong)


def _collision(
    spec: NumericSpec,
    scope: dict[str, Any],
    right: Fraction | float,
    wrong: list[Fraction | float],
) -> str | None:
    tolerance = spec.tolerance
    near = recognising(tolerance)
    numbers = [float(value) for value in wrong]
    reach = [1.01 * near.reach(number) for number in numbers]
    for i, value in enumerate(wrong):
        name = spec.misconceptions[i].id
        if tolerance.accepts(value, right, scope):
            return f"misconception {name!r} gives the right answer"
        for j in range(i):
            if abs(numbers[i] - numbers[j]) > max(reach[i], reach[j]):
                continue  # clearly apart; only close ones are compared exactly
            if near.accepts(wrong[j], value, {}) or near.accepts(value, wrong[j], {}):
                other = spec.misconceptions[j].id
                return f"misconceptions {other!r} and {name!r} give the same number"
    return None

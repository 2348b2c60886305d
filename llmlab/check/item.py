"""One numeric item: its parameters, its answer's formula, and the wrong answers it knows.

id: B11.ttft            worksheet id, a dot, a name
covers: [B11]           ids of data/curriculum.yaml
prompt: "... {wait} ..." parameters in braces, shown with their unit
answer: wait + prefill  formula over the parameters (see formula.py)
unit: ms                unit of the answer; "" for a plain number
tolerance: {relative: 0.005} | {absolute: 0.5} | {exact: true} | {order_of_magnitude: 0.5}
           | {interval: [low, high]} (two formulas; `answer` may be used)
hints: up to three, each deeper than the one before
misconceptions: [{id, formula, message, credit}]  `answer` stands for the right value
parameters: {wait: {first: 120, draw: [80, 100], unit: ms}}   `first` is the curriculum's
together: [{first: {layers: 36, ...}, draw: [{...}]}]          values drawn as one row
require: ["chunk > decode"]                                    which draws are legal
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from llmlab.check import formula, units
from llmlab.check.yaml_lines import Place

Whole = Annotated[int, Field(strict=True)]
Real = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Number = Whole | Real
Level = Literal["L1", "L2", "L3", "L4"]
Role = Literal["inference", "product"]
ID = Annotated[str, Field(pattern=r"^[A-Z][A-Za-z0-9-]*(\.[a-z0-9-]+)+$", max_length=60)]
CurriculumId = Annotated[str, Field(pattern=r"^[A-C][0-9]{1,2}$")]
Slug = Annotated[str, Field(pattern=r"^[a-z0-9-]+$", max_length=60)]
Text = Annotated[str, Field(min_length=1, max_length=4000)]
_NAME = re.compile(r"^[a-z][a-z0-9_]*$")
_BRACES = re.compile(r"\{(\w+)\}")
_SLACK = 1 + 4 * Fraction(1, 2**52)
_NOISE = 1e-12  # of binary arithmetic: 0.1 + 0.2 is meant as 0.3, also where exact is asked

Problem = tuple[Place, str]  # where in the file, and what is wrong there


def once(what: str, names: Iterable[str]) -> None:
    """ValueError for a name that is given twice."""
    for name, count in Counter(names).items():
        if count > 1:
            raise ValueError(f"{what} {name!r} is given twice")


def formula_trouble(text: str, available: Collection[str]) -> str:
    """Why a formula over these parameters cannot be used; "" if it can."""
    try:
        unknown = formula.names(text) - set(available)
    except formula.FormulaError as error:
        return str(error)
    return f"no parameter {sorted(unknown)}; there are {sorted(available)}" if unknown else ""


class Model(BaseModel):
    """Frozen, and a field that is not known is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Parameter(Model):
    """One number of an item: the curriculum's own, and what a student may get instead."""

    first: Number | str
    draw: Annotated[list[Number | str], Field(min_length=1, max_length=200)]
    unit: str = ""


class Row(Model):
    """Numbers that belong together (a model's shape): drawn as one row."""

    first: dict[str, Number | str]
    draw: Annotated[list[dict[str, Number | str]], Field(min_length=1, max_length=200)]

    @model_validator(mode="after")
    def _same_columns(self) -> Row:
        for row in self.draw:
            if set(row) != set(self.first):
                raise ValueError(f"each row of draw needs the columns {sorted(self.first)}")
        return self


class Tolerance(Model):
    """How near is right. Of several distances the widest counts."""

    exact: Literal[True] | None = None
    relative: Annotated[Number | None, Field(gt=0, le=0.5)] = None
    absolute: Annotated[Number | None, Field(gt=0)] = None
    order_of_magnitude: Annotated[Number | None, Field(gt=0, le=2)] = None
    interval: tuple[str, str] | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Tolerance:
        if self.interval or self.order_of_magnitude:
            others = [self.exact, self.relative, self.absolute]
            both = self.interval and self.order_of_magnitude
            if both or any(value is not None for value in others):
                raise ValueError("an interval or an order of magnitude stands alone")
        elif self.exact is None and self.relative is None and self.absolute is None:
            raise ValueError(
                "name a tolerance: exact, relative, absolute, order_of_magnitude or interval"
            )
        return self

    def reach(self, right: float) -> float:
        """How far from `right` an answer may be; for the kinds that are a distance."""
        relative = _NOISE if self.exact else float(self.relative or 0)
        return max(float(self.absolute or 0), relative * abs(right))

    def accepts(
        self, given: Fraction | float, right: Fraction | float, scope: dict[str, Any]
    ) -> bool:
        """Whether `given` counts as `right`; never rounds before it compares."""
        if self.interval:
            low, high = (formula.evaluate(f, {**scope, "answer": right}) for f in self.interval)
            return bool(low <= given <= high)
        if self.order_of_magnitude:
            if given <= 0 or right <= 0:
                return bool(given == right)
            return abs(math.log10(given / right)) <= self.order_of_magnitude * float(_SLACK)
        allowed = self.reach(float(right))
        distance = abs(float(given) - float(right))
        # Floats decide what is clear; near the edge the decimals that were written decide.
        if abs(distance - allowed) > 1e-6 * max(distance, allowed):
            return distance < allowed
        relative = formula.exact(_NOISE if self.exact else self.relative or 0)
        near = max(formula.exact(self.absolute or 0), relative * abs(formula.exact(right)))
        return abs(formula.exact(given) - formula.exact(right)) <= near * _SLACK


class Misconception(Model):
    """A wrong way of thinking, by the formula that makes its number, and what to say about it."""

    id: Slug
    formula: str
    message: Text
    credit: Annotated[Number, Field(ge=0, lt=1)] = 0


class Draws(Model):
    """Parameters, shared by a worksheet's items or an item's own."""

    parameters: dict[str, Parameter] = Field(default_factory=dict)
    together: list[Row] = Field(default_factory=list)
    require: list[str] = Field(default_factory=list)

    def names(self) -> set[str]:
        """Every parameter's name."""
        return set(self.parameters) | {name for row in self.together for name in row.first}

    @model_validator(mode="after")
    def _names_once(self) -> Draws:
        listed = [*self.parameters, *(name for row in self.together for name in row.first)]
        for name in listed:
            if not _NAME.match(name) or name == "answer" or name in formula.FUNCTIONS:
                raise ValueError(f"{name!r} cannot be a parameter's name")
        once("parameter", listed)
        return self


class NumericSpec(Draws):
    """What any numeric item has, in a worksheet or in the question bank."""

    id: ID
    covers: Annotated[list[CurriculumId], Field(min_length=1)]
    prompt: Text
    answer: str
    unit: str = ""
    tolerance: Tolerance
    hints: Annotated[list[Text], Field(max_length=3)] = Field(default_factory=list)
    misconceptions: list[Misconception] = Field(default_factory=list)
    points: Annotated[Number, Field(gt=0, le=100)] = 1

    @field_validator("unit")
    @classmethod
    def _known_unit(cls, value: str) -> str:
        units.known(value)
        return value

    @model_validator(mode="after")
    def _ids_once(self) -> NumericSpec:
        once("misconception", [m.id for m in self.misconceptions])
        return self

    def problems(self, available: set[str]) -> list[Problem]:
        """Formulas and braces that name what does not exist."""
        with_answer = available | {"answer"}
        wrong = list(enumerate(self.misconceptions))
        formulas: list[tuple[Place, str, set[str]]] = [
            (("answer",), self.answer, available),
            *((("require", i), text, available) for i, text in enumerate(self.require)),
            *(
                (("tolerance", "interval", i), text, with_answer)
                for i, text in enumerate(self.tolerance.interval or ())
            ),
            *((("misconceptions", i, "formula"), w.formula, with_answer) for i, w in wrong),
        ]
        texts: list[tuple[Place, str]] = [
            (("prompt",), self.prompt),
            *((("hints", i), hint) for i, hint in enumerate(self.hints)),
            *((("misconceptions", i, "message"), w.message) for i, w in wrong),
        ]
        found = [(at, formula_trouble(text, names)) for at, text, names in formulas]
        found += [(at, _braces_trouble(text, available)) for at, text in texts]
        return [problem for problem in found if problem[1]]


def _braces_trouble(text: str, available: set[str]) -> str:
    unknown = set(_BRACES.findall(text)) - available
    return f"no parameter {sorted(unknown)} for the braces" if unknown else ""


def fill(text: str, values: dict[str, Any], shown_units: dict[str, str]) -> str:
    """A prompt with its numbers in place: "{wait}" becomes "120 ms"."""

    def one(match: re.Match[str]) -> str:
        name = match.group(1)
        value = values.get(name, match.group(0))
        if isinstance(value, str):
            return value
        return units.with_unit(value, shown_units.get(name, ""))

    return _BRACES.sub(one, text)

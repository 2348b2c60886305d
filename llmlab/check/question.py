"""The question bank's schema, kind by kind. Files: data/questions/*.yaml.

    title: Checkpoint
    topic: batching                        a slug; default topic of the file's questions
    questions:
      - id: B14.documents                  a letter-group, a dot, a name; unique over everything
        kind: single                       numeric single multiple order match flaw trace prose
        covers: [B14]
        level: L2                          L1..L4
        roles: [inference, product]        default: both
        prompt: ...
        short: the short answer (L2 reader)   full: the full one
        hints: [...]  followups: [ids]  points: 1
        options: [{id: slug, text: ..., correct: true, why: ...}]     single multiple flaw trace
        report: ...                        flaw: the text of a benchmark report
        trace: traces/stall.jsonl          trace: a trace file below the questions' folder
        steps: [{id: slug, text: ...}]     order: in the right order
        pairs: [{id: slug, left: ..., right: ..., why: ...}]          match
        rubric: [{id: slug, text: ..., points: 1}]                    prose; default: four of B13
        answer, unit, tolerance, parameters, misconceptions, ...      numeric: see item.py

Options, steps and right sides are shown in an order of the student's own; answers are kept by id.
"""

from __future__ import annotations

import string
from collections.abc import Collection, Sequence
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from llmlab.check.item import (
    ID,
    CurriculumId,
    Level,
    Model,
    Number,
    NumericSpec,
    Role,
    Slug,
    Text,
    once,
)

ROLES: tuple[Role, ...] = ("inference", "product")


class Common(Model):
    """What every question has."""

    id: ID
    covers: Annotated[list[CurriculumId], Field(min_length=1)]
    level: Level
    prompt: Text
    short: Text
    full: Text
    topic: Slug | None = None
    roles: Annotated[list[Role], Field(min_length=1)] = Field(default_factory=lambda: list(ROLES))
    hints: Annotated[list[Text], Field(max_length=3)] = Field(default_factory=list)
    followups: list[ID] = Field(default_factory=list)
    points: Annotated[Number, Field(gt=0, le=100)] = 1


class Option(Model):
    """One option, and why it is right or wrong."""

    id: Slug
    text: Text
    why: Text
    correct: bool = False


class Step(Model):
    """One step of an order question."""

    id: Slug
    text: Text


class Pair(Model):
    """A left side and what belongs to it."""

    id: Slug
    left: Text
    right: Text
    why: str = ""


class Criterion(Model):
    """One line of a rubric."""

    id: Slug
    text: Text
    points: Annotated[Number, Field(gt=0, le=10)] = 1


# The four points of every prose answer that names no rubric of its own.
RUBRIC = (
    Criterion(id="result", text="The result is correct."),
    Criterion(
        id="reasoning",
        text="The steps between are shown. A tool's name alone is no reasoning.",
    ),
    Criterion(id="failure", text="The case in which it fails is named."),
    Criterion(id="check", text="There is a check that could prove the answer wrong."),
)


def _lettered(what: str, ids: Sequence[str]) -> None:
    """Ids of what is shown under letters: each once, and none that is such a letter itself."""
    once(what, ids)
    for name in ids:
        if name in string.ascii_lowercase[: len(ids)]:
            raise ValueError(f"{what} {name!r}: a learner's {name} is a letter; choose a longer id")


class _Choice(Common):
    options: Annotated[list[Option], Field(min_length=2, max_length=10)]

    @model_validator(mode="after")
    def _some_correct(self) -> _Choice:
        _lettered("option", [o.id for o in self.options])
        right = sum(o.correct for o in self.options)
        if right == 0 or right == len(self.options):
            raise ValueError("options: at least one must be correct and at least one wrong")
        return self

    @property
    def many(self) -> bool:
        """Whether more than one option may be chosen."""
        return sum(o.correct for o in self.options) > 1


class SingleQuestion(_Choice):
    """One option is right."""

    kind: Literal["single"]

    @model_validator(mode="after")
    def _one_correct(self) -> SingleQuestion:
        if self.many:
            raise ValueError("options: a single-choice question has exactly one correct option")
        return self


class MultipleQuestion(_Choice):
    """Several options may be right."""

    kind: Literal["multiple"]

    @property
    def many(self) -> bool:
        return True


class FlawQuestion(_Choice):
    """A benchmark report with a flaw to spot."""

    kind: Literal["flaw"]
    report: Text


class TraceQuestion(_Choice):
    """A recorded trace to read, drawn from its file."""

    kind: Literal["trace"]
    trace: str

    @field_validator("trace")
    @classmethod
    def _below(cls, value: str) -> str:
        path = PurePosixPath(value)
        if path.is_absolute() or ".." in path.parts or path.suffix != ".jsonl":
            raise ValueError("must be the path of a .jsonl file below the questions' folder")
        return value


class OrderQuestion(Common):
    """Steps to put in order."""

    kind: Literal["order"]
    steps: Annotated[list[Step], Field(min_length=3, max_length=10)]

    @model_validator(mode="after")
    def _ids_once(self) -> OrderQuestion:
        _lettered("step", [s.id for s in self.steps])
        return self


class MatchQuestion(Common):
    """Left sides to match with right sides."""

    kind: Literal["match"]
    pairs: Annotated[list[Pair], Field(min_length=2, max_length=10)]

    @model_validator(mode="after")
    def _ids_once(self) -> MatchQuestion:
        _lettered("pair", [p.id for p in self.pairs])
        once("right side", [p.right for p in self.pairs])
        return self


class ProseQuestion(Common):
    """Words, committed before the rubric is shown; scored by the learner, then an instructor."""

    kind: Literal["prose"]
    rubric: Annotated[list[Criterion], Field(min_length=1, max_length=10)] = Field(
        default_factory=lambda: list(RUBRIC)
    )

    @model_validator(mode="after")
    def _ids_once(self) -> ProseQuestion:
        once("criterion", [c.id for c in self.rubric])
        return self

    def share(self, met: Collection[str]) -> float:
        """Share of the rubric's points, 0 to 1, that these criteria earn; unknown ones are none."""
        points = {c.id: float(c.points) for c in self.rubric}
        return sum(value for name, value in points.items() if name in met) / sum(points.values())


class NumericQuestion(NumericSpec, Common):
    """A number by a formula, as in a worksheet."""

    kind: Literal["numeric"]


Question = Annotated[
    SingleQuestion
    | MultipleQuestion
    | FlawQuestion
    | TraceQuestion
    | OrderQuestion
    | MatchQuestion
    | ProseQuestion
    | NumericQuestion,
    Field(discriminator="kind"),
]


class QuestionFile(Model):
    """A file of questions."""

    title: Text
    topic: Slug
    questions: Annotated[list[Question], Field(min_length=1)]

"""Right answers, for the solution notebooks and for tests. Not part of what a lab imports."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from llmlab.check import library
from llmlab.check.choose import as_item
from llmlab.check.question import (
    MatchQuestion,
    NumericQuestion,
    OrderQuestion,
    ProseQuestion,
    Question,
)
from llmlab.check.student import Student, current_student
from llmlab.check.worksheet import Item, right_value


def solution(item_id: str, student: Student | None = None) -> Any:
    """The right answer of an item or a question, for this student's numbers.

    A number in the item's unit (an int where it is whole), or option ids, steps in order, or
    pairs. Prose has no single right answer: ValueError.
    """
    known = library.items()
    if item_id in known:
        return _number(known[item_id], student)
    question = library.find_question(item_id)
    if isinstance(question, NumericQuestion):
        return _number(as_item(question), student)
    return _chosen(question)


def _number(item: Item, student: Student | None) -> int | float:
    who = student or current_student()
    value = right_value(item.spec, item.parameters_for(who))
    if isinstance(value, Fraction) and value.denominator == 1:
        return int(value)
    return float(value)


def _chosen(question: Question) -> Any:
    if isinstance(question, OrderQuestion):
        return [step.id for step in question.steps]
    if isinstance(question, MatchQuestion):
        return {pair.id: pair.id for pair in question.pairs}
    if isinstance(question, (NumericQuestion, ProseQuestion)):
        raise ValueError(f"{question.id}: an answer in words has no single solution")
    return [option.id for option in question.options if option.correct]

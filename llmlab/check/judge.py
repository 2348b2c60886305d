"""Judging one answer: reading it, comparing it, recognising how it went wrong. No state here.

A message never holds the expected value; an error never carries the variables of this module.
"""

from __future__ import annotations

from typing import Any

from llmlab.check import worksheet
from llmlab.check.answer import NotANumber, is_blank, read_number
from llmlab.check.item import NumericSpec
from llmlab.check.result import Result, refused, unchecked
from llmlab.check.student import Student
from llmlab.check.worksheet import Item, Values


def judge(item: Item, answer: Any, student: Student | None = None) -> Result:
    """The result of an answer for this student's numbers; raises nothing."""
    try:
        values = item.parameters_for(student)
        return judge_numeric(item.spec, answer, values, item)
    except Exception:
        return unchecked(item.id)


def judge_numeric(spec: NumericSpec, answer: Any, values: Values, item: Item) -> Result:
    """Compare one answer with the formula's value for `values`."""
    if is_blank(answer):
        return Result(spec.id, "not answered yet", "")
    try:
        reading = read_number(answer, spec.unit)
    except NotANumber as error:
        return refused(spec.id, error)
    right = worksheet.right_value(spec, values)
    scope = worksheet.numbers_only(values)
    if spec.tolerance.accepts(reading.value, right, scope):
        return Result(spec.id, "correct", "", reading.understood, score=1.0)
    near = worksheet.recognising(spec.tolerance)
    for wrong, value in zip(
        spec.misconceptions, worksheet.wrong_values(spec, values, right), strict=True
    ):
        if near.accepts(reading.value, value, {}):
            return Result(
                spec.id,
                "partial" if wrong.credit else "incorrect",
                item.fill(wrong.message, values),
                reading.understood,
                score=float(wrong.credit),
                misconception=wrong.id,
            )
    return Result(spec.id, "incorrect", "Not yet: look at the parts again.", reading.understood)

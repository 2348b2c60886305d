"""What a learner gave, read as a number in the item's unit.

Accepted: int, float, Fraction, Decimal, scalars of numpy and torch (known by their methods, not
by import), text such as "1.5 GiB", "1380 ms", "1,380" or "3/4". Refused with a reason: True and
False, NaN and infinity, words, a comma as decimal point.
"""

from __future__ import annotations

import decimal
import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from llmlab.check import formula, units

MAX_TEXT = 200
MAX_KEPT = 20_000
_NUMBER = re.compile(
    r"^(?P<number>[+-]?(?:(?:[1-9]\d{0,2}(?:,\d{3})+|\d[\d_]*)(?:\.\d*)?|\.\d+)"
    r"(?:[eE][+-]?\d{1,4})?)"
    r"(?:\s*/\s*(?P<below>\d{1,18})(?=\s|$))?\s*(?P<unit>[^\d\s.,+-].*)?$"
)
# One comma that groups no thousands: "0,4", "12,25", and "0,125" too.
_COMMA = re.compile(r"^[+-]?(?:\d+,(?:\d{1,2}|\d{4,})|(?:0\d*|\d{4,}),\d{3})(?![\d,])")


class NotANumber(ValueError):
    """An answer that is no number; the text says what is expected."""


@dataclass(frozen=True)
class Reading:
    """A number in the item's unit, and how the answer was read."""

    value: Fraction
    understood: str


def is_blank(answer: Any) -> bool:
    """Whether a cell was left as it came: `...`, None or an empty text."""
    return answer is ... or answer is None or (isinstance(answer, str) and not answer.strip())


def _example(unit: str) -> str:
    if not unit:
        return "a number, for example 42"
    try:
        known = units.EXAMPLES.get(units.kind_of(unit))
    except units.UnitError:
        known = None
    return f"a number in {unit}, for example {known or units.with_unit(42, unit)}"


def _exact(value: float, unit: str) -> Fraction:
    """The decimal number that a float is written as; NotANumber for NaN and infinity."""
    if not math.isfinite(value):
        raise NotANumber(f"that is no finite number; expected {_example(unit)}")
    return formula.exact(value)


def _scalar(answer: Any, unit: str) -> Fraction:
    """A number object as a number; duck-typed so that numpy and torch need no import."""
    if isinstance(answer, bool) or type(answer).__name__ in ("bool", "bool_"):
        raise NotANumber(f"True and False are no numbers; expected {_example(unit)}")
    if isinstance(answer, (int, Fraction)):
        return Fraction(answer)
    if isinstance(answer, float):
        return _exact(float(answer), unit)
    if isinstance(answer, decimal.Decimal):
        if not answer.is_finite() or abs(answer.adjusted()) > 400:
            raise NotANumber(f"that is no finite number; expected {_example(unit)}")
        return Fraction(answer)
    take = getattr(answer, "item", None)
    if callable(take):
        shape = tuple(getattr(answer, "shape", ()))
        if math.prod(int(n) for n in shape) != 1:
            raise NotANumber(f"that holds {shape} values; expected {_example(unit)}")
        inner = take()
        if isinstance(inner, (bool, int, float)):
            narrow = getattr(answer, "dtype", None)
            if isinstance(inner, float) and "64" not in str(narrow):
                # A float32 or float16 carries about 7 or 3 digits: read the digits it has.
                return _exact(_short(inner, str(narrow)), unit)
            return _scalar(inner, unit)
    kind = type(answer).__name__
    raise NotANumber(f"a {kind} is no number; expected {_example(unit)}")


def _short(value: float, dtype: str) -> float:
    digits = 7 if "32" in dtype and "bfloat" not in dtype else 3
    return float(f"{value:.{digits}g}") if math.isfinite(value) else value


def _text(answer: str, unit: str) -> tuple[Fraction, str]:
    """The number that a text begins with, and the unit behind it ("" without one)."""
    text = answer.strip().replace("\u2212", "-").replace("\u00a0", " ").replace("\u202f", " ")
    if len(text) > MAX_TEXT:
        raise NotANumber(f"that is a long text; expected {_example(unit)}")
    if _COMMA.match(text):
        raise NotANumber(
            f"write the decimal point as a dot: {text.replace(',', '.', 1)!r}, not {text!r}"
        )
    text = re.sub(r"(?<=\d) (?=\d{3}(?!\d))", "", text)
    match = _NUMBER.match(text)
    if not match:
        raise NotANumber(f"{_quoted(text)} is no number; expected {_example(unit)}")
    try:
        value = Fraction(match["number"].replace(",", "").replace("_", "").rstrip("."))
        if match["below"]:
            value /= int(match["below"])
    except (ValueError, ZeroDivisionError):
        raise NotANumber(f"{_quoted(text)} is no number; expected {_example(unit)}") from None
    if value and abs(math.log10(abs(value.numerator)) - math.log10(value.denominator)) > 300:
        raise NotANumber(f"that is no sensible number; expected {_example(unit)}")
    return value, (match["unit"] or "").strip()


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


def read_number(answer: Any, unit: str) -> Reading:
    """The answer as a number in `unit`; NotANumber or UnitError says what is expected."""
    if not isinstance(answer, str):
        value = _scalar(answer, unit)
        return Reading(value, f"read as {units.with_unit(value, unit)}")
    value, own = _text(answer, unit)
    if not own:
        return Reading(value, f"read as {units.with_unit(value, unit)}")
    try:
        converted = units.convert(value, own, unit)
    except units.UnitError as error:
        raise NotANumber(f"{error}; expected {_example(unit)}") from None
    here = units.with_unit(value, own)
    there = units.with_unit(converted, unit)
    same = here == there or own == unit
    return Reading(converted, f"read as {here}" if same else f"read as {here} = {there}")


def raw(answer: Any) -> Any:
    """The answer as plain JSON, such that reading it again gives the same number."""
    if isinstance(answer, (bool, int, str)):
        return answer if not isinstance(answer, str) else answer[:MAX_KEPT]
    if isinstance(answer, float):
        return answer if math.isfinite(answer) else repr(answer)
    if isinstance(answer, (Fraction, decimal.Decimal)):
        return str(answer)
    if isinstance(answer, (list, tuple)):
        return [raw(part) for part in answer[:100]]
    if isinstance(answer, dict):
        return {str(key)[:200]: raw(value) for key, value in list(answer.items())[:100]}
    try:
        value = _scalar(answer, "")
        return int(value) if value == int(value) else float(value)
    except Exception:
        return repr(answer)[:200]

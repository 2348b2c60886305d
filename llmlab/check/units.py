"""Units of answers: what "1.5 GiB" or "1380 ms" means, and how a number is shown.

A small registry of our own instead of pint's full one: only units that this subject uses, so a
slip of the pen is an error and not, say, a mass. pint is imported at the first use of a unit.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

_DEFINITIONS = """
second = [time] = s = sec = seconds
millisecond = second / 1000 = ms = milliseconds
microsecond = second / 1000000 = us = µs = microseconds
nanosecond = second / 1000000000 = ns = nanoseconds
minute = 60 * second = min = minutes
hour = 60 * minute = h = hours
byte = [information] = B = bytes
kilobyte = 1000 * byte = kB = KB
megabyte = 1000000 * byte = MB
gigabyte = 1000000000 * byte = GB
terabyte = 1000000000000 * byte = TB
kibibyte = 1024 * byte = KiB
mebibyte = 1048576 * byte = MiB
gibibyte = 1073741824 * byte = GiB
tebibyte = 1099511627776 * byte = TiB
token = [token] = tok = tokens
request = [request] = req = requests
gap = [gap] = gaps
step = [step] = steps
block = [block] = blocks
expert = [expert] = experts
chunk = [chunk] = chunks
stall = [stall] = stalls
flop = [operation] = FLOP = flops = FLOPs
gigaflop = 1000000000 * flop = GFLOP
teraflop = 1000000000000 * flop = TFLOP
petaflop = 1000000000000000 * flop = PFLOP
dollar = [money] = USD = dollars
percent = 1 / 100 = pct
times = 1 = x
million = 1000000 = M
"""
# Numbers that no item has as its answer: an example must not give one away (tested).
EXAMPLES = {"[time]": "12.5 ms or 0.0125 s", "[information]": "2.5 GiB or 2684354560 B"}


class UnitError(ValueError):
    """A unit that is unknown or measures something else; the text says what is accepted."""


@lru_cache(maxsize=1)
def _registry() -> Any:
    import pint

    registry = pint.UnitRegistry(None, non_int_type=Fraction)
    registry.load_definitions(_DEFINITIONS.strip().splitlines())
    return registry


@lru_cache(maxsize=1024)
def _factor_and_kind(unit: str) -> tuple[Fraction, str]:
    """Factor to base units, and the dimension as text, of a unit's name."""
    name = unit.strip().replace("%", "percent").replace("$", "dollar")
    name = re.sub(r"\bper\b", "/", name.replace("×", "x").replace("·", "*"))
    if not name:
        return Fraction(1), "dimensionless"
    if len(name) > 40 or not re.fullmatch(r"[A-Za-zµ0-9 /*]+", name):
        raise UnitError(f"{unit!r} is not a unit that is known here")
    try:
        base = _registry().Quantity(Fraction(1), name).to_base_units()
    except Exception:  # pint raises its own and, for odd text, the parser's errors
        raise UnitError(f"{unit!r} is not a unit that is known here") from None
    return Fraction(base.magnitude), str(base.dimensionality)


def known(unit: str) -> None:
    """Raise UnitError unless this unit is known."""
    _factor_and_kind(unit)


def convert(number: Fraction, source: str, target: str) -> Fraction:
    """A number in `source` units as one in `target` units; UnitError if these differ in kind."""
    if source == target:
        return number
    have, kind = _factor_and_kind(source)
    want, wanted = _factor_and_kind(target)
    if kind != wanted:
        raise UnitError(f"{source or 'a plain number'} does not measure what is asked for here")
    return number * (have / want)


def kind_of(unit: str) -> str:
    """Dimension of a unit, e.g. "[time]"."""
    return _factor_and_kind(unit)[1]


def number_text(number: float | Fraction | int) -> str:
    """A number as people write it: 1,380 or 0.4 or 1.61e10; up to six figures."""
    value = float(number)
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    if 1e-3 <= abs(value) < 1e9:
        digits = max(0, 5 - math.floor(math.log10(abs(value))))
        text = f"{value:,.{digits}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:.6g}"


def with_unit(number: float | Fraction | int, unit: str) -> str:
    """A number with its unit: "400 ms", "12.2 %", "7.55x"."""
    text = number_text(number)
    if unit in ("x", "×"):
        return f"{text}x"
    return f"{text} {unit}".strip()

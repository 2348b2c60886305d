"""What a learner may write, and how it is read."""

from __future__ import annotations

import decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmlab.check import units
from llmlab.check.answer import NotANumber, is_blank, raw, read_number
from tests.every import every


class TorchScalar:
    """The face of a torch tensor with one value."""

    def __init__(self, value: float, shape: tuple[int, ...] = (), dtype: str = "torch.float32"):
        self.value, self.shape, self.dtype = value, shape, dtype

    def item(self) -> float:
        return self.value


GOOD: list[tuple[Any, str, float]] = [
    (400, "ms", 400),
    (400.0, "ms", 400),
    (Fraction(800, 2), "ms", 400),
    (decimal.Decimal("400.0"), "ms", 400),
    (np.int64(400), "ms", 400),
    (np.float32(0.1), "s", 0.1),
    (np.float64(400), "ms", 400),
    (np.array([400]), "ms", 400),
    (TorchScalar(float(np.float32(45.8))), "ms", 45.8),
    (TorchScalar(400.0, (1,)), "ms", 400),
    ("400", "ms", 400),
    (" 400 ms ", "ms", 400),
    ("400ms", "ms", 400),
    ("0.4 s", "ms", 400),
    (".4 s", "ms", 400),
    ("4e2", "ms", 400),
    ("400000 µs", "ms", 400),
    ("1,380 ms", "ms", 1380),
    ("1 380 ms", "ms", 1380),
    ("1_380", "ms", 1380),
    ("1.5 GiB", "B", 1610612736),
    ("1.5 GB", "B", 1500000000),
    ("2048 KiB", "GiB", 2048 / 1024**2),
    ("25 tokens/s", "tokens/s", 25),
    ("25 tok/s", "tokens/s", 25),
    ("1500 tokens/min", "tokens/s", 25),
    ("295 FLOP/B", "FLOP/B", 295),
    ("0.295 TFLOP/GB", "FLOP/B", 295),
    ("12.2 %", "%", 12.2),
    ("3.75x", "x", 3.75),
    ("3/4", "x", 0.75),
    ("\u22123", "ms", -3),
    ("+3", "ms", 3),
    ("20 dollars", "dollars", 20),
    ("0 ms", "ms", 0),
    ("٣٤", "ms", 34),
]


@every(GOOD)
def test_a_number_is_read_in_the_units_of_the_item(answer: Any, unit: str, value: float) -> None:
    assert float(read_number(answer, unit).value) == pytest.approx(value, rel=1e-12, abs=0)


REFUSED: list[tuple[Any, str]] = [
    (True, "True and False"),
    (np.bool_(True), "True and False"),
    (float("nan"), "no finite number"),
    (float("inf"), "no finite number"),
    (decimal.Decimal("NaN"), "no finite number"),
    (decimal.Decimal("1e999999"), "no finite number"),
    (np.float64("nan"), "no finite number"),
    (np.array([1, 2]), "2"),
    (TorchScalar(1.0, (3, 4)), "(3, 4)"),
    ("nan", "no number"),
    ("inf", "no number"),
    ("fast", "no number"),
    ("0,4 s", "dot"),
    ("12,25", "dot"),
    ("0,125 s", "0.125 s"),
    ("1234,567", "dot"),
    ("3 GB", "does not measure"),
    ("3 parsecs", "not a unit"),
    ("1/0", "no number"),
    ("1e9999", "no"),
    ("9" * 300, "long"),
    ("1" + "0" * 190 + "e4000", "no"),
    ([1], "list"),
    ({"a": 1}, "dict"),
    (object(), "object"),
    (1j, "complex"),
    ("1 ms; import os", "not a unit"),
    ("__import__", "no number"),
]


@every(REFUSED)
def test_what_is_no_number_is_refused_with_a_reason_and_an_example(answer: Any, said: str) -> None:
    with pytest.raises(NotANumber) as caught:
        read_number(answer, "ms")
    assert said in str(caught.value)


def test_what_was_understood_is_shown() -> None:
    assert read_number("0.4 s", "ms").understood == "read as 0.4 s = 400 ms"
    assert read_number("1.61e10 B", "GiB").understood == "read as 1.61e+10 B = 14.9943 GiB"
    assert read_number(3.75, "x").understood == "read as 3.75x"


def test_a_cell_left_as_it_came_is_blank_and_zero_is_an_answer() -> None:
    assert all(map(is_blank, [..., None, "", "  ", "\n"]))
    assert not any(map(is_blank, [0, 0.0, "0", False]))


@given(st.text(max_size=80))
def test_any_text_is_a_number_or_a_reason(text: str) -> None:
    try:
        assert isinstance(read_number(text, "ms").value, Fraction)
    except NotANumber as error:
        said = str(error)
    else:
        return
    assert "expected" in said or "dot" in said


@given(
    st.one_of(
        st.integers(-(10**12), 10**12),
        st.floats(-1e12, 1e12, allow_nan=False),
        st.fractions(-1000, 1000, max_denominator=1000),
        st.decimals(-1000, 1000, places=4),
    )
)
def test_an_answer_kept_as_json_reads_as_the_same_number(answer: Any) -> None:
    before = read_number(answer, "ms").value
    after = read_number(raw(answer), "ms").value
    assert float(after) == pytest.approx(float(before), rel=1e-12, abs=1e-300)


@given(st.fractions(0, 10**6, max_denominator=10**6))
def test_units_convert_there_and_back_exactly(value: Fraction) -> None:
    for one, other in [("ms", "s"), ("GiB", "B"), ("GB", "GiB"), ("tokens/s", "tokens/min")]:
        assert units.convert(units.convert(value, one, other), other, one) == value

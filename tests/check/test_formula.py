"""Formulas: a whitelist, exact numbers, nothing run."""

from __future__ import annotations

import contextlib
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmlab.check.formula import FormulaError, evaluate, names, parse
from tests.every import every

HOSTILE = [
    "__import__('os').system('true')",
    "().__class__.__bases__",
    "wait.real",
    "[1, 2][0]",
    "{1: 2}",
    "lambda: 1",
    "(x := 1)",
    "'a' * 9",
    "open('f')",
    "min(*[1, 2])",
    "max(1, key=2)",
    "1 if wait else 2",
    "1 and 2",
    "not 1",
    "1 < 2 < 3",
    "True",
    "1j",
    "f'{1}'",
    "wait; wait",
    "wait = 3",
    "",
    "1 +",
    "-" * 5000 + "1",
    "(" * 300 + "1" + ")" * 300,
    "1" * 500,
    "\x00",
]


@every(HOSTILE)
def test_a_formula_that_is_not_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(FormulaError):
        parse(text)


@every(
    [
        "9 ** 9 ** 9",
        "2 ** 100000",
        "wait ** 5000",
        "1 / 0",
        "1 // 0",
        "5 % 0",
        "sqrt(0 - 1)",
        "log2(0)",
        "missing + 1",
        "(0 - 8) ** 0.5",
        "10.0 ** 400 * 1.5",
        "floor()",
        "ceil(1, 2, 3)",
    ]
)
def test_a_formula_without_a_sensible_value_is_an_error_not_a_crash(text: str) -> None:
    with pytest.raises(FormulaError):
        evaluate(text, {"wait": 3})


def test_decimals_are_exact() -> None:
    assert evaluate("0.1 + 0.2", {}) == Fraction(3, 10)
    assert evaluate("gap * 3", {"gap": 0.1}) == Fraction(3, 10)


def test_the_bytes_of_one_token() -> None:
    scope = {"layers": 32, "kv_heads": 8, "head_dim": 128}
    assert evaluate("kv_bytes_per_token(layers, kv_heads, head_dim, 2)", scope) == 131072


def test_the_experts_that_a_batch_reads() -> None:
    assert evaluate("expected_experts(128, 8, 1)", {}) == pytest.approx(8)
    assert evaluate("expected_experts(128, 8, 64)", {}) == pytest.approx(125.94, abs=0.005)


def test_names_are_parameters_and_not_functions() -> None:
    assert names("min(a, b) + ceil(c / 2)") == {"a", "b", "c"}


@given(st.text(max_size=60))
def test_any_text_is_a_value_or_a_formula_error(text: str) -> None:
    with contextlib.suppress(FormulaError):
        evaluate(text, {"a": 1, "b": 2})


@given(st.integers(-1000, 1000), st.integers(-1000, 1000), st.integers(1, 1000))
def test_values_are_those_of_python_fractions(a: int, b: int, c: int) -> None:
    scope = {"a": a, "b": b, "c": c}
    want = Fraction(a + b * c) / c - Fraction(b % c) + a // c
    assert evaluate("(a + b * c) / c - b % c + a // c", scope) == want

"""Formulas of worksheets and questions: a small whitelist over the syntax tree, never `eval`.

A formula is arithmetic over the item's parameters: `wait + prefill + (tokens - 1) * gap`.
Values are exact fractions wherever the operations allow it, so that 1.38 s and 1380 ms are the
same number and "exact" means exact.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

Value = int | float | Fraction
MAX_LENGTH = 400
MAX_NODES = 200
MAX_BITS = 4096


class FormulaError(ValueError):
    """A formula that is not allowed, or that has no value for these parameters."""


def expected_experts(experts: Value, per_token: Value, batch: Value) -> float:
    """Expected number of distinct experts that a batch reads in one layer.

    E(1 - (1 - k/E)^B), if routing is uniform and independent over tokens (stated assumption):
    each of E experts is missed by one token with probability 1 - k/E.
    """
    missed: float = (1.0 - float(per_token) / float(experts)) ** float(batch)
    return float(experts) * (1.0 - missed)


def kv_bytes_per_token(layers: Value, kv_heads: Value, head_dim: Value, size: Value) -> Value:
    """Bytes of keys and values that one token keeps: 2·layers·kv_heads·head_dim·bytes."""
    return 2 * layers * kv_heads * head_dim * size


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "ceil": math.ceil,
    "floor": math.floor,
    "sqrt": math.sqrt,
    "log2": math.log2,
    "min": min,
    "max": max,
    "abs": abs,
    "expected_experts": expected_experts,
    "kv_bytes_per_token": kv_bytes_per_token,
}


def _power(base: Value, exponent: Value) -> Value:
    """A power that cannot grow without bound (9**9**9 would fill the memory)."""
    if exponent == int(exponent):
        size = max(Fraction(base).numerator.bit_length(), Fraction(base).denominator.bit_length())
        if size * abs(int(exponent)) > MAX_BITS:
            raise FormulaError("a power in the formula is too large")
        whole: Value = base ** int(exponent)
        return whole
    real: float = float(base) ** float(exponent)
    return real


_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def _allow(node: ast.expr) -> None:
    """Raise on the first node that is not arithmetic."""
    match node:
        case ast.Constant(value=value) if type(value) in (int, float):
            return
        case ast.Name():
            return
        case ast.BinOp(op=op) if type(op) in _BINARY:
            parts = [node.left, node.right]
        case ast.UnaryOp(op=unary) if type(unary) in _UNARY:
            parts = [node.operand]
        case ast.Compare(ops=[only]) if type(only) in _COMPARE:
            parts = [node.left, *node.comparators]
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in FUNCTIONS:
            parts = node.args
        case _:
            what = ast.unparse(node)
            raise FormulaError(
                f"{what!r} is not allowed in a formula: use numbers, parameters, "
                f"+ - * / // % **, one comparison, and {', '.join(sorted(FUNCTIONS))}"
            )
    for part in parts:
        _allow(part)


@lru_cache(maxsize=4096)
def parse(text: str) -> ast.expr:
    """The checked syntax tree of a formula; FormulaError says what is not allowed."""
    if len(text) > MAX_LENGTH:
        raise FormulaError(f"a formula has at most {MAX_LENGTH} characters, this has {len(text)}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise FormulaError(f"{text!r} is not a formula") from None
    if sum(1 for _ in ast.walk(tree)) > MAX_NODES:
        raise FormulaError(f"{text!r} is too long for a formula")
    _allow(tree)
    return tree


@lru_cache(maxsize=4096)
def names(text: str) -> frozenset[str]:
    """Parameters that a formula uses."""
    called = {id(n.func) for n in ast.walk(parse(text)) if isinstance(n, ast.Call)}
    found = (n for n in ast.walk(parse(text)) if isinstance(n, ast.Name) and id(n) not in called)
    return frozenset(n.id for n in found)


@lru_cache(maxsize=8192, typed=True)  # 0.1 and the fraction of its bits are equal
def exact(number: Value) -> Fraction:
    """The decimal number that was written: 0.1 is one tenth. ValueError for NaN and infinity."""
    return Fraction(repr(number)) if isinstance(number, float) else Fraction(number)


Compiled = Callable[[Mapping[str, Value]], Any]


def _compiled(node: ast.expr) -> Compiled:
    """A checked tree as nested functions: a class has a million values to work out."""
    match node:
        case ast.Constant(value=value):
            number = exact(value)
            return lambda scope: number
        case ast.Name(id=name):
            return lambda scope: _look_up(scope, name)
        case ast.BinOp():
            binary, left, right = (
                _BINARY[type(node.op)],
                _compiled(node.left),
                _compiled(node.right),
            )
            return lambda scope: binary(left(scope), right(scope))
        case ast.UnaryOp():
            unary, operand = _UNARY[type(node.op)], _compiled(node.operand)
            return lambda scope: unary(operand(scope))
        case ast.Compare():
            compare = _COMPARE[type(node.ops[0])]
            low, high = _compiled(node.left), _compiled(node.comparators[0])
            return lambda scope: compare(low(scope), high(scope))
        case ast.Call(func=ast.Name(id=name)):
            function, parts = FUNCTIONS[name], [_compiled(arg) for arg in node.args]
            return lambda scope: function(*(part(scope) for part in parts))
    raise FormulaError("not a formula")


def _look_up(scope: Mapping[str, Value], name: str) -> Value:
    try:
        value = scope[name]
    except KeyError:
        raise FormulaError(f"the formula uses {name!r}, which is no parameter") from None
    return value if type(value) is Fraction else exact(value)


@lru_cache(maxsize=4096)
def _ready(text: str) -> Compiled:
    return _compiled(parse(text))


def evaluate(text: str, scope: Mapping[str, Value]) -> Value:
    """Value of a formula: a Fraction where exact, else a finite float (or a bool if it compares).

    Raises FormulaError for anything that is not allowed or has no finite value.
    """
    try:
        value = _ready(text)(scope)
    except FormulaError:
        raise
    except (ArithmeticError, ValueError, TypeError) as error:
        raise FormulaError(f"{text!r} has no value here: {error}") from None
    if isinstance(value, bool):
        return value
    if isinstance(value, complex) or not _fits(value):
        raise FormulaError(f"{text!r} has no finite value here")
    return value if isinstance(value, (float, Fraction)) else Fraction(value)


def _fits(value: Value) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a fraction beyond the range of floats
        return False

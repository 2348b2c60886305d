"""One value of the KV pool, read or written, in float32 or in 16 bits.

numba knows no 16 bit floats on a CPU; LLVM does, and makes whole vectors of these.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from llmlab.kernels.cpu_tile import FLOAT, HALF, load, number, store


@intrinsic(prefer_literal=True)
def cached(context: Any, half: Any, base: Any, index: Any) -> Any:
    """(half, base, index): the index-th value from address `base` on, as float32."""

    def generate(context: Any, b: ir.IRBuilder, signature: Any, args: Any) -> Any:
        _, base, index = args
        kind, size = _stored(half)
        found = load(b, kind, base, b.mul(index, number(size)), size)
        return b.fpext(found, FLOAT) if kind is HALF else found

    return types.float32(half, types.intp, types.intp), generate


@intrinsic(prefer_literal=True)
def put(context: Any, half: Any, base: Any, index: Any, value: Any) -> Any:
    """(half, base, index, value): write a float32 there, rounded to the nearest that fits."""

    def generate(context: Any, b: ir.IRBuilder, signature: Any, args: Any) -> Any:
        _, base, index, value = args
        kind, size = _stored(half)
        value = b.fptrunc(value, HALF) if kind is HALF else value
        store(b, value, base, b.mul(index, number(size)), size)
        return context.get_dummy_value()

    return types.void(half, types.intp, types.intp, types.float32), generate


def _stored(half: Any) -> tuple[ir.Type, int]:
    """How a value is kept, and its bytes."""
    return (HALF, 2) if half.literal_value else (FLOAT, 4)

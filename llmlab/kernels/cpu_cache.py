"""One value of the KV pool, read or written, in float32 or in 16 bits.

numba knows no 16 bit floats on a CPU; LLVM does, and makes whole vectors of these.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from llmlab.kernels.cpu_tile import FLOAT, HALF, number


def _place(b: ir.IRBuilder, half: bool, base: Any, index: Any) -> Any:
    kind, size = (HALF, 2) if half else (FLOAT, 4)
    return b.inttoptr(b.add(base, b.mul(index, number(size))), kind.as_pointer())


@intrinsic(prefer_literal=True)
def cached(context: Any, half: Any, base: Any, index: Any) -> Any:
    """(half, base, index): the index-th value from address `base` on, as float32."""

    def generate(context: Any, b: ir.IRBuilder, signature: Any, args: Any) -> Any:
        in_half = bool(half.literal_value)
        found = b.load(_place(b, in_half, *args[1:]))
        return b.fpext(found, FLOAT) if in_half else found

    return types.float32(half, types.intp, types.intp), generate


@intrinsic(prefer_literal=True)
def put(context: Any, half: Any, base: Any, index: Any, value: Any) -> Any:
    """(half, base, index, value): write a float32 there, rounded to the nearest that fits."""

    def generate(context: Any, b: ir.IRBuilder, signature: Any, args: Any) -> Any:
        in_half = bool(half.literal_value)
        value = b.fptrunc(args[3], HALF) if in_half else args[3]
        b.store(value, _place(b, in_half, *args[1:3]))
        return context.get_dummy_value()

    return types.void(half, types.intp, types.intp, types.float32), generate

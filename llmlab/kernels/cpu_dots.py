"""The two inner loops of decode attention, written as LLVM instructions like `cpu_tile`.

    dots   scores[g, i] = q[g] . k[i]              the queries stay in registers
    sums   out[g] += sum over i of p[g, i] v[i]    the sums do

for the positions i of one page and the `group` query heads g that share its key head. Keys and
values are float32, or 16 bits that are widened as they are read.
"""

from __future__ import annotations

from math import gcd
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from llmlab.kernels.cpu_tile import FLOAT, I32, I64, load, number, prefetch, store, widened
from llmlab.kernels.cpu_width import WIDTH

LINE = 64  # bytes of a cache line
SUMS = 12 if WIDTH == 8 else 24  # vectors of sums that leave registers for the rest


def _function(b: ir.IRBuilder, name: str, kind: ir.FunctionType) -> ir.Function:
    return b.module.globals.get(name) or ir.Function(b.module, kind, name)


def _loop(b: ir.IRBuilder, name: str) -> tuple[Any, ir.Block, ir.Block, ir.Block]:
    """Counter, block before, block of the loop (where the builder now is), block after."""
    before, body, after = b.block, b.append_basic_block(name), b.append_basic_block("after")
    b.branch(body)
    b.position_at_end(body)
    i = b.phi(I64)
    i.add_incoming(number(0), before)
    return i, before, body, after


def _repeat(b: ir.IRBuilder, i: Any, count: Any, body: ir.Block, after: ir.Block) -> None:
    following = b.add(i, number(1))
    i.add_incoming(following, body)
    b.cbranch(b.icmp_signed("<", following, count), body, after)
    b.position_at_end(after)


def _fetch(b: ir.IRBuilder, ahead: Any, i: Any, step: Any, size: int) -> None:
    """Ask for the i-th key or value from `ahead` on, line by line."""
    row = b.mul(i, step)
    for offset in range(0, size, LINE):
        prefetch(b, b.add(ahead, row), number(offset))


def at_once(group: int, vectors: int) -> int:
    """Vectors of a value whose sums, for all heads of a group, fit into the registers."""
    fitting = [n for n in range(1, vectors + 1) if not vectors % n and n * group <= SUMS]
    return max(fitting, default=1)


def emit_dots(b: ir.IRBuilder, dim: int, group: int, half: bool, args: Any) -> None:
    q, k, k_step, count, out, step, ahead = args
    width, size = gcd(dim, WIDTH), 2 if half else 4
    vector = ir.VectorType(FLOAT, width)
    fma = _function(b, f"llvm.fma.v{width}f32", ir.FunctionType(vector, [vector] * 3))
    kind = ir.FunctionType(FLOAT, [FLOAT, vector])
    total = _function(b, f"llvm.vector.reduce.fadd.v{width}f32", kind)
    cells = [(g, j) for g in range(group) for j in range(dim // width)]
    queries = {(g, j): load(b, vector, q, number(4 * (g * dim + j * width)), 4) for g, j in cells}
    i, _, body, after = _loop(b, "dots")
    row = b.add(k, b.mul(i, k_step))
    places = [number(size * j * width) for j in range(dim // width)]
    keys = [widened(b, half, width, row, place) for place in places]
    _fetch(b, ahead, i, k_step, size * dim)
    for g in range(group):
        dot = b.fmul(queries[g, 0], keys[0])
        for j in range(1, dim // width):
            dot = b.call(fma, [queries[g, j], keys[j], dot])
        score = b.call(total, [ir.Constant(FLOAT, -0.0), dot], fastmath=("reassoc",))
        store(b, score, out, b.add(b.mul(step, number(g)), b.mul(i, number(4))))
    _repeat(b, i, count, body, after)


def emit_sums(b: ir.IRBuilder, dim: int, group: int, half: bool, first: int, args: Any) -> None:
    """The sums of `at_once` vectors of the values from `first` on."""
    p, step, v, v_step, count, out, ahead = args
    width, size = gcd(dim, WIDTH), 2 if half else 4
    vector = ir.VectorType(FLOAT, width)
    fma = _function(b, f"llvm.fma.v{width}f32", ir.FunctionType(vector, [vector] * 3))
    undefined, spread = ir.Constant(vector, ir.Undefined), ir.VectorType(I32, width)
    here = range(first, first + at_once(group, dim // width))
    where = {(g, j): number(4 * (g * dim + j * width)) for g in range(group) for j in here}
    start = {cell: load(b, vector, out, place, 4) for cell, place in where.items()}
    i, before, body, after = _loop(b, "sums")
    total = {cell: b.phi(vector) for cell in where}
    row = b.add(v, b.mul(i, v_step))
    values = {j: widened(b, half, width, row, number(size * j * width)) for j in here}
    if first == 0:
        _fetch(b, ahead, i, v_step, size * dim)
    for g in range(group):
        weight = load(b, FLOAT, b.add(p, b.mul(step, number(g))), b.mul(i, number(4)), 4)
        one = b.insert_element(undefined, weight, ir.Constant(I32, 0))
        many = b.shuffle_vector(one, undefined, ir.Constant(spread, [0] * width))
        for j in here:
            phi = total[g, j]
            phi.add_incoming(start[g, j], before)
            total[g, j] = b.call(fma, [many, values[j], phi])
            phi.add_incoming(total[g, j], body)
    _repeat(b, i, count, body, after)
    for cell, place in where.items():
        store(b, total[cell], out, place)


# dim, group and half must be constants where these are called: loops over them are written out.


@intrinsic(prefer_literal=True)
def dots(
    context: Any,
    dim: Any,
    group: Any,
    half: Any,
    q: Any,
    k: Any,
    k_step: Any,
    count: Any,
    out: Any,
    step: Any,
    ahead: Any,
) -> Any:
    """Of `count` keys, `k_step` bytes apart; the scores of a head are `step` bytes apart.

    count >= 1. ahead: where the keys or values lie that are read next, as many and as far apart.
    """

    def generate(context: Any, b: ir.IRBuilder, signature: Any, args: Any) -> Any:
        emit_dots(b, dim.literal_value, group.literal_value, bool(half.literal_value), args[3:])
        return context.get_dummy_value()

    return types.void(dim, group, half, *[types.intp] * 7), generate


@intrinsic(prefer_literal=True)
def sums(
    context: Any,
    dim: Any,
    group: Any,
    half: Any,
    p: Any,
    step: Any,
    v: Any,
    v_step: Any,
    count: Any,
    out: Any,
    ahead: Any,
) -> Any:
    """Of `count` values, `v_step` bytes apart; the scores of a head are `step` bytes apart.

    count >= 1, ahead: as in `dots`.
    """

    def generate(context: Any, b: ir.IRBuilder, signature: Any, args: Any) -> Any:
        vectors = dim.literal_value // gcd(dim.literal_value, WIDTH)
        for first in range(0, vectors, at_once(group.literal_value, vectors)):
            emit_sums(
                b, dim.literal_value, group.literal_value, bool(half.literal_value), first, args[3:]
            )
        return context.get_dummy_value()

    return types.void(dim, group, half, *[types.intp] * 7), generate

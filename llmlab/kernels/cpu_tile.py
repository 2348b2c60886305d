"""The innermost loop of a matrix product on the CPU, written as LLVM instructions.

A tile is a few rows of x times one panel of W (2 vectors of columns, K deep, in one piece in
memory). Its sums stay in registers; a step in k reads 2 vectors of weights and one number of every
row. A compiler does not find this arrangement by itself, so it is spelled out; which instructions
a vector becomes (AVX2, AVX-512, NEON) LLVM decides.

Every sum runs over k from first to last whatever the tile, so a row's result does not depend on
how many rows are computed with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from llmlab.kernels.cpu_width import COLUMNS, WIDTH

I32, I64, FLOAT, HALF = ir.IntType(32), ir.IntType(64), ir.FloatType(), ir.HalfType()
WORDS = types.void(*[types.intp] * 11)


def number(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


def load(b: ir.IRBuilder, kind: ir.Type, base: Any, offset: Any, align: int) -> Any:
    """The value of this kind at address base + offset."""
    found = b.load(b.inttoptr(b.add(base, offset), kind.as_pointer()))
    found.align = align
    return found


def widened(b: ir.IRBuilder, half: bool, width: int, base: Any, offset: Any) -> Any:
    """A vector of float32 values, stored as such or in 16 bits."""
    kind = HALF if half else FLOAT
    found = load(b, ir.VectorType(kind, width), base, offset, 2 if half else 4)
    return b.fpext(found, ir.VectorType(FLOAT, width)) if half else found


def broadcast(b: ir.IRBuilder, value: Any) -> Any:
    vector = ir.VectorType(FLOAT, WIDTH)
    undefined = ir.Constant(vector, ir.Undefined)
    one = b.insert_element(undefined, value, ir.Constant(I32, 0))
    return b.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(I32, WIDTH), [0] * WIDTH))


def multiply_add(b: ir.IRBuilder) -> ir.Function:
    vector = ir.VectorType(FLOAT, WIDTH)
    name = f"llvm.fma.v{WIDTH}f32"
    known = b.module.globals.get(name)
    return known or ir.Function(b.module, ir.FunctionType(vector, [vector] * 3), name)


def store(b: ir.IRBuilder, value: Any, base: Any, offset: Any, align: int = 4) -> None:
    b.store(value, b.inttoptr(b.add(base, offset), value.type.as_pointer())).align = align


def prefetch(b: ir.IRBuilder, base: Any, offset: Any) -> None:
    """Ask for the line at this address, which will be read soon; any address will do."""
    line = ir.IntType(8).as_pointer()
    name = "llvm.prefetch.p0"
    kind = ir.FunctionType(ir.VoidType(), [line, I32, I32, I32])
    function = b.module.globals.get(name) or ir.Function(b.module, kind, name)
    for_reading, kept_a_while, data = (ir.Constant(I32, n) for n in (0, 2, 1))
    where = b.inttoptr(b.add(base, offset), line)
    b.call(function, [where, for_reading, kept_a_while, data])


def emit_tile(b: ir.IRBuilder, rows: int, panels: int, kind: Kind, args: Any) -> None:
    """y [rows, panels * COLUMNS] = x [rows, K] times this many panels, see `tiles`."""
    x, x_stride, w, w_stride, depth, y, y_stride, resume, wide_to, ahead = args
    vector = ir.VectorType(FLOAT, WIDTH)
    fma, size = multiply_add(b), 2 if kind.half else 4
    cells = [(p, m, j) for p in range(panels) for m in range(rows) for j in range(2)]
    column = {(p, j): number(4 * (p * COLUMNS + j * WIDTH)) for p in range(panels) for j in (0, 1)}
    x_rows = [b.add(x, b.mul(x_stride, number(4 * m))) for m in range(rows)]
    y_rows = [b.add(y, b.mul(y_stride, number(4 * m))) for m in range(rows)]
    w_panels = [b.add(w, b.mul(w_stride, number(p * COLUMNS * size))) for p in range(panels)]
    names = ("resume", "tile", "store")
    before, again, loop, after = b.block, *(b.append_basic_block(name) for name in names)
    b.cbranch(b.icmp_signed("!=", resume, number(0)), again, loop)
    b.position_at_end(again)
    earlier = {(p, m, j): load(b, vector, y_rows[m], column[p, j], 4) for p, m, j in cells}
    b.branch(loop)
    b.position_at_end(loop)
    k = b.phi(I64)
    k.add_incoming(number(0), before)
    k.add_incoming(number(0), again)
    sums = {cell: b.phi(vector) for cell in cells}
    at = b.mul(k, number(COLUMNS * size))
    wide = {
        (p, j): widened(b, kind.half, WIDTH, w_panels[p], b.add(at, number(j * WIDTH * size)))
        for p, j in column
    }
    if kind.keep:
        for (p, j), value in wide.items():
            store(b, value, wide_to, b.add(b.mul(k, number(COLUMNS * 4)), column[p, j]))
    if kind.fetch:
        prefetch(b, ahead, b.mul(k, number(COLUMNS * 2)))
    many = [broadcast(b, load(b, FLOAT, row, b.mul(k, number(4)), 4)) for row in x_rows]
    following = b.add(k, number(1))
    k.add_incoming(following, loop)
    for p, m, j in cells:
        sums[p, m, j].add_incoming(ir.Constant(vector, [0.0] * WIDTH), before)
        sums[p, m, j].add_incoming(earlier[p, m, j], again)
        done = b.call(fma, [many[m], wide[p, j], sums[p, m, j]])
        sums[p, m, j].add_incoming(done, loop)
        sums[p, m, j] = done
    b.cbranch(b.icmp_signed("<", following, depth), loop, after)
    b.position_at_end(after)
    for p, m, j in cells:
        store(b, sums[p, m, j], y_rows[m], column[p, j])


@dataclass(frozen=True, slots=True)
class Kind:
    """What else a tile does.

    half: its weights are in 16 bits. keep: it writes them to `wide` in float32, for tiles that
    follow (one panel only). fetch: it asks for the 16 bit weights at `ahead`, as many as it reads.
    """

    half: bool = False
    keep: bool = False
    fetch: bool = False


def tiles(panels: int, most_rows: int, kind: Kind) -> Any:
    """f(rows, x, x_stride, w, w_stride, K, y, y_stride, resume, wide, ahead).

    For 1 .. most_rows rows; addresses as integers, strides in numbers, w_stride in rows of a panel.
    resume not 0: sums go on from what y holds, so a product can be cut in k.
    """

    @intrinsic
    def compute(
        context: Any,
        rows: Any,
        x: Any,
        xs: Any,
        w: Any,
        ws: Any,
        k: Any,
        y: Any,
        ys: Any,
        resume: Any,
        wide: Any,
        ahead: Any,
    ) -> Any:
        def generate(context: Any, b: ir.IRBuilder, signature: Any, args: Any) -> Any:
            done = b.append_basic_block("done")
            choice = b.switch(args[0], done)
            for rows in range(1, most_rows + 1):
                block = b.append_basic_block(f"rows{rows}")
                choice.add_case(number(rows), block)
                b.position_at_end(block)
                emit_tile(b, rows, panels, kind, args[1:])
                b.branch(done)
            b.position_at_end(done)
            return context.get_dummy_value()

        return WORDS, generate

    return compute

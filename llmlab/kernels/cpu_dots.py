"""The two inner loops of decode attention, written as LLVM instructions like `cpu_tile`.

    dots   scores[g, i] = q[g] . k[i]              the queries stay in registers
    sums   out[g] += sum over i of p[g, i] v[i]    the sums do

for the positions i of one page and the `group` query heads g that share its key head.
"""

from __future__ import annotations

from math import gcd
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from llmlab.kernels.cpu_tile import FLOAT, I32, I64, WIDTH, load, number


def _function(b: ir.IRBuilder, name: str, kind: ir.FunctionType) -> ir.Function:
    return b.module.globals.get(name) or ir.Function(b.module, kind, name)


def _store(b: ir.IRBuilder, value: Any, base: Any, offset: Any) -> None:
    b.store(value, b.inttoptr(b.add(base, offset), value.type.as_pointer())).align = 4


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


def dots_for(dim: int, group: int) -> Any:
    """f(q, k, bytes from key to key, count, scores, bytes from head to head); count >= 1."""
    width = gcd(dim, WIDTH)
    vector = ir.VectorType(FLOAT, width)
    cells = [(g, j) for g in range(group) for j in range(dim // width)]

    @intrinsic
    def dots(context: Any, q: Any, k: Any, k_step: Any, count: Any, out: Any, step: Any) -> Any:
        def generate(context: Any, b: ir.IRBuilder, signature: Any, args: Any) -> Any:
            q, k, k_step, count, out, step = args
            fma = _function(b, f"llvm.fma.v{width}f32", ir.FunctionType(vector, [vector] * 3))
            kind = ir.FunctionType(FLOAT, [FLOAT, vector])
            total = _function(b, f"llvm.vector.reduce.fadd.v{width}f32", kind)
            queries = {
                (g, j): load(b, vector, q, number(4 * (g * dim + j * width)), 4) for g, j in cells
            }
            i, _, body, after = _loop(b, "dots")
            row = b.add(k, b.mul(i, k_step))
            keys = [load(b, vector, row, number(4 * j * width), 4) for j in range(dim // width)]
            for g in range(group):
                dot = b.fmul(queries[g, 0], keys[0])
                for j in range(1, dim // width):
                    dot = b.call(fma, [queries[g, j], keys[j], dot])
                zero = ir.Constant(FLOAT, -0.0)
                score = b.call(total, [zero, dot], fastmath=("reassoc",))
                place = b.add(b.mul(step, number(g)), b.mul(i, number(4)))
                _store(b, score, out, place)
            _repeat(b, i, count, body, after)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 6), generate

    return dots


def sums_for(dim: int, group: int) -> Any:
    """f(p, bytes from head to head, v, bytes from value to value, count, out); count >= 1."""
    width = gcd(dim, WIDTH)
    vector = ir.VectorType(FLOAT, width)
    spread = ir.Constant(ir.VectorType(I32, width), [0] * width)
    cells = [(g, j) for g in range(group) for j in range(dim // width)]

    @intrinsic
    def sums(context: Any, p: Any, step: Any, v: Any, v_step: Any, count: Any, out: Any) -> Any:
        def generate(context: Any, b: ir.IRBuilder, signature: Any, args: Any) -> Any:
            p, step, v, v_step, count, out = args
            fma = _function(b, f"llvm.fma.v{width}f32", ir.FunctionType(vector, [vector] * 3))
            undefined = ir.Constant(vector, ir.Undefined)
            where = {(g, j): number(4 * (g * dim + j * width)) for g, j in cells}
            start = {cell: load(b, vector, out, where[cell], 4) for cell in cells}
            i, before, body, after = _loop(b, "sums")
            total = {cell: b.phi(vector) for cell in cells}
            row = b.add(v, b.mul(i, v_step))
            values = [load(b, vector, row, number(4 * j * width), 4) for j in range(dim // width)]
            for g in range(group):
                weight = load(b, FLOAT, b.add(p, b.mul(step, number(g))), b.mul(i, number(4)), 4)
                one = b.insert_element(undefined, weight, ir.Constant(I32, 0))
                many = b.shuffle_vector(one, undefined, spread)
                for j in range(dim // width):
                    phi = total[g, j]
                    phi.add_incoming(start[g, j], before)
                    total[g, j] = b.call(fma, [many, values[j], phi])
                    phi.add_incoming(total[g, j], body)
            _repeat(b, i, count, body, after)
            for cell in cells:
                _store(b, total[cell], out, where[cell])
            return context.get_dummy_value()

        return types.void(*[types.intp] * 6), generate

    return sums

"""The small kernels against the copy rate, and the products of a layer against the matrix rate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from llmlab.bench.gpu_timing import Bench, measure, relative_error, rotations, within
from llmlab.kernels.activation import silu_mul, silu_mul_spec
from llmlab.kernels.fused import rope_and_write, rope_and_write_spec
from llmlab.kernels.norm import rms_norm, rms_norm_spec
from llmlab.kernels.rope import rope_table
from llmlab.kernels.variants import SHAPES

Row = dict[str, Any]
PAGE = 16


def run(bench: Bench) -> Iterator[Row]:
    """norm, activation, and the fused norm + RoPE + write, at decode and prefill sizes."""
    shapes = [("tiny", 4, 2, 64, 64, 128, True)] if bench.tiny else SHAPES[:3]
    for tokens in (3,) if bench.tiny else (64, 2048, 8192):
        for name, heads, kv_heads, dim, hidden, inner, norm in shapes:
            makers = {
                "rms_norm": partial(_norm, bench, tokens, hidden),
                "silu_mul": partial(_silu, bench, tokens, inner),
                "rope_and_write": partial(_rope, bench, tokens, heads, kv_heads, dim, norm),
            }
            for kernel, make in makers.items():
                row = {"kernel": kernel, "shape": name, "tokens": tokens}
                if bench.is_over():
                    yield {**row, "status": "no time"}
                else:
                    yield _row(bench, row, make)


def _row(bench: Bench, row: Row, make: Callable[[], tuple[Any, float, int]]) -> Row:
    call, error, moved = make()
    row = {**row, "error": error}
    if not within(error, bench.dtype):
        return {**row, "status": "wrong: not timed"}
    more = 0 if bench.tiny else rotations(moved) - 1
    timing = measure(bench, {"ours": [call, *(make()[0] for _ in range(more))]})["ours"]
    rate = moved / timing.median
    share = bench.share("copy", rate)
    return {**row, "status": "ok", **timing.as_row(), "rate": rate, "share": share}


def _norm(bench: Bench, tokens: int, hidden: int) -> tuple[Any, float, int]:
    x, residual = bench.randn(tokens, hidden), bench.randn(tokens, hidden)
    weight = bench.randn(hidden)
    expected = rms_norm_spec(x, weight, 1e-6, residual)[0]
    error = relative_error(rms_norm(x, weight, 1e-6, residual.clone()), expected)
    call = partial(rms_norm, x, weight, 1e-6, residual)
    return call, error, 4 * x.numel() * x.element_size()


def _silu(bench: Bench, tokens: int, inner: int) -> tuple[Any, float, int]:
    x = bench.randn(tokens, 2 * inner)
    error = relative_error(silu_mul(x), silu_mul_spec(x))
    return partial(silu_mul, x), error, 3 * tokens * inner * x.element_size()


def _rope(
    bench: Bench, tokens: int, heads: int, kv_heads: int, dim: int, norm: bool
) -> tuple[Any, float, int]:
    qkv = bench.randn(tokens, heads + 2 * kv_heads, dim)
    pages = -(-tokens // PAGE)
    caches = [bench.randn(pages, PAGE, kv_heads, dim) for _ in range(2)]
    table = rope_table(tokens, dim, 10_000.0, bench.device)
    at = torch.arange(tokens, device=bench.device)
    weight = bench.randn(dim) if norm else None
    call = partial(rope_and_write, qkv, at, at, table, caches[0], caches[1], weight, weight)
    q = call()
    # The spec writes row by row: a few rows of each kind are enough.
    few = slice(0, 40)
    copies = [c.clone() for c in caches]
    spec = rope_and_write_spec(
        qkv[few], at[few], at[few], table, copies[0], copies[1], weight, weight
    )
    error = relative_error(q[few], spec)
    for got, wanted in zip(caches, copies, strict=True):
        rows = got.flatten(0, 1)[few], wanted.flatten(0, 1)[few]  # [slots, Hkv, D]
        error = max(error, relative_error(*rows))
    moved = 2 * qkv.numel() * qkv.element_size() + tokens * dim * 4
    return call, error, moved


def run_gemm(bench: Bench) -> Iterator[Row]:
    """torch's products of one layer, as the engine calls them."""
    shapes = [("tiny", 4, 2, 64, 64, 128, True)] if bench.tiny else SHAPES[:3]
    for tokens in (3,) if bench.tiny else (2048, 512, 32):
        for name, heads, kv_heads, dim, hidden, inner, _ in shapes:
            products = {
                "qkv": (hidden, (heads + 2 * kv_heads) * dim),
                "output": (heads * dim, hidden),
                "gate_up": (hidden, 2 * inner),
                "down": (inner, hidden),
            }
            for part, (k, n) in products.items():
                row = {"kernel": f"gemm {part}", "shape": name, "tokens": tokens}
                if bench.is_over():
                    yield {**row, "status": "no time"}
                    continue
                x = bench.randn(tokens, k)
                sets = 1 if bench.tiny else rotations(n * k * 2, 8)
                calls = [partial(F.linear, x, bench.randn(n, k)) for _ in range(sets)]
                timing = measure(bench, {"torch": calls})["torch"]
                rate = 2 * tokens * n * k / timing.median
                read = n * k * x.element_size() / timing.median
                yield {
                    **row,
                    "status": "ok",
                    **timing.as_row(),
                    "rate": rate,
                    "share": bench.share("gemm", rate),
                    "weight_read_share": bench.share("read", read),
                }

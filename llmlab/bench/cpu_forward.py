"""One forward pass taken apart: paged attention, attention on contiguous keys, none at all."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
import torch.nn.functional as F

from llmlab.engine import Model
from llmlab.engine.attention import Attention, paged_attention
from llmlab.engine.batch import Batch, make_batch
from llmlab.engine.cpu_runner import can_compile
from llmlab.engine.kv_cache import KVCache

BLOCK = 16


def contiguous_attention(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, batch: Batch
) -> torch.Tensor:
    """Decode attention that takes for granted that request r owns the r-th part of the pool."""
    rows, heads, dim = q.shape
    context, kv_heads = batch.context_lens[0], k_cache.shape[2]
    k = k_cache.to(q.dtype).view(rows, context, kv_heads, dim).transpose(1, 2)  # [R, Hkv, C, D]
    v = v_cache.to(q.dtype).view(rows, context, kv_heads, dim).transpose(1, 2)
    q = q.view(rows, kv_heads, heads // kv_heads, dim)
    return F.scaled_dot_product_attention(q, k, v).reshape(rows, heads, dim)


def no_attention(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, batch: Batch
) -> torch.Tensor:
    """All of a step but its attention."""
    return q


VARIANTS: dict[str, Attention] = {
    "paged": paged_attention,
    "contiguous": contiguous_attention,
    "without attention": no_attention,
}


def decode_batch(rows: int, context: int, block: int = BLOCK) -> Batch:
    """`rows` requests that decode at this context, in blocks that lie one after the other."""
    width = context // block
    tables = [list(range(r * width, (r + 1) * width)) for r in range(rows)]
    slots = [(r + 1) * context - 1 for r in range(rows)]
    places = [context - 1] * rows
    ends = list(range(rows + 1))
    return make_batch([5] * rows, places, slots, ends, [context] * rows, tables, ends[:-1])


def forward_ms(model: Model, rows: int, context: int = 128, repeats: int = 6) -> dict[str, float]:
    """Median milliseconds of a forward pass of `rows` decodes, by attention, interleaved."""
    if context % BLOCK:
        raise ValueError(f"context = {context}: must be a multiple of {BLOCK}")
    runs = _compiled(model, rows, context) if can_compile(model) else _plain(model, rows, context)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    with torch.inference_mode():
        for attempt in range(repeats + 1):
            for name, run in runs.items():
                start = time.perf_counter()
                run()
                if attempt:  # the first one faults the pool in
                    seconds[name].append(time.perf_counter() - start)
    return {name: median(values) * 1e3 for name, values in seconds.items()}


def _pool(model: Model, rows: int, context: int, block: int) -> KVCache:
    kv = KVCache(model.config, rows * context // block, block, dtype=model.kv_dtype)
    kv.k.normal_()
    kv.v.normal_()
    return kv


def _plain(model: Model, rows: int, context: int) -> dict[str, Callable[[], object]]:
    kv = _pool(model, rows, context, BLOCK)
    return {
        name: partial(model.forward, decode_batch(rows, context), kv, attention)
        for name, attention in VARIANTS.items()
    }


def _compiled(model: Model, rows: int, context: int) -> dict[str, Callable[[], object]]:
    """The same three of the compiled pass; contiguous: a request's cache is one single block."""
    from llmlab.engine.cpu_model import CpuForward

    class WithoutAttention(CpuForward):
        def _attention(self, index: int, qkv: torch.Tensor, *rest: object) -> None:
            pass

    pages = _pool(model, rows, context, BLOCK)
    runs: dict[str, Callable[[], object]] = {}
    for name, kind, kv, block in (
        ("paged", CpuForward, pages, BLOCK),
        ("contiguous", CpuForward, _pool(model, rows, context, context), context),
        ("without attention", WithoutAttention, pages, BLOCK),
    ):
        runs[name] = partial(kind(model, kv, context), decode_batch(rows, context, block))
    return runs


def operator_calls(model: Model, run: Callable[[], object]) -> dict[str, int]:
    """How often each torch operator was called by `run()`, top-level and nested alike."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run()
    return {event.key: event.count for event in profiler.key_averages()}

"""One forward pass taken apart: paged attention, attention on contiguous keys, none at all."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F

from llmlab.engine import Model
from llmlab.engine.attention import Attention, paged_attention
from llmlab.engine.batch import Batch, make_batch
from llmlab.engine.kv_cache import KVCache

BLOCK = 16


def contiguous_attention(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, batch: Batch
) -> torch.Tensor:
    """Decode attention that takes for granted that request r owns the r-th part of the pool."""
    rows, heads, dim = q.shape
    context, kv_heads = batch.context_lens[0], k_cache.shape[2]
    k = k_cache.view(rows, context, kv_heads, dim).transpose(1, 2)  # [R, Hkv, C, D]
    v = v_cache.view(rows, context, kv_heads, dim).transpose(1, 2)
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


def decode_batch(rows: int, context: int) -> Batch:
    """`rows` requests that decode at this context, in blocks that lie one after the other."""
    width = context // BLOCK
    tables = [list(range(r * width, (r + 1) * width)) for r in range(rows)]
    slots = [(r + 1) * context - 1 for r in range(rows)]
    places = [context - 1] * rows
    ends = list(range(rows + 1))
    return make_batch([5] * rows, places, slots, ends, [context] * rows, tables, ends[:-1])


def forward_ms(model: Model, rows: int, context: int = 128, repeats: int = 6) -> dict[str, float]:
    """Median milliseconds of a forward pass of `rows` decodes, by attention, interleaved."""
    if context % BLOCK:
        raise ValueError(f"context = {context}: must be a multiple of {BLOCK}")
    kv = KVCache(model.config, rows * context // BLOCK, BLOCK, dtype=model.dtype)
    kv.k.normal_()
    kv.v.normal_()
    seconds: dict[str, list[float]] = {name: [] for name in VARIANTS}
    with torch.inference_mode():
        for attempt in range(repeats + 1):
            for name, attention in VARIANTS.items():
                taken = _timed(model, decode_batch(rows, context), kv, attention)
                if attempt:  # the first one faults the pool in
                    seconds[name].append(taken)
    return {name: median(values) * 1e3 for name, values in seconds.items()}


def _timed(model: Model, batch: Batch, kv: KVCache, attention: Attention) -> float:
    start = time.perf_counter()
    model.forward(batch, kv, attention)
    return time.perf_counter() - start


def operator_calls(model: Model, run: Callable[[], object]) -> dict[str, int]:
    """How often each torch operator was called by `run()`, top-level and nested alike."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run()
    return {event.key: event.count for event in profiler.key_averages()}

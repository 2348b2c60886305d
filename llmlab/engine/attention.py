"""Attention over a paged cache, in plain torch.

Any callable with `paged_attention`'s signature can take its place: `Engine(model, attention=f)`.
It must read no slot beyond a request's context: unwritten memory may hold NaN, and 0 * NaN = NaN.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from llmlab.engine.batch import Batch

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Batch], torch.Tensor]


def paged_attention(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, batch: Batch
) -> torch.Tensor:
    """Causal attention of T query tokens over their own requests' blocks.

    q [T, Hq, D]; k_cache, v_cache [N, B, Hkv, D], this step's keys and values already written;
    returns [T, Hq, D]. Query token i of a request with n query tokens and context c stands at
    position c - n + i and sees positions 0 .. c - n + i. Scores are scaled by 1 / sqrt(D). Query
    head h reads key head h // (Hq / Hkv).
    """
    out = torch.empty_like(q)
    block_size = k_cache.shape[1]
    start = 0
    for row, (n, context) in enumerate(zip(batch.query_lens, batch.context_lens, strict=True)):
        blocks = batch.block_table[row, : -(-context // block_size)]
        k = k_cache[blocks].flatten(0, 1)[:context]  # [C, Hkv, D]
        v = v_cache[blocks].flatten(0, 1)[:context]
        out[start : start + n] = _attend(q[start : start + n], k, v)
        start += n
    return out


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """q [n, Hq, D] over k, v [C, Hkv, D], whose last n positions are the queries' own."""
    n, heads, dim = q.shape
    context, kv_heads, _ = k.shape
    group = heads // kv_heads
    # Query heads that share a key head become rows of one matrix product.
    q = q.view(n, kv_heads, group, dim).permute(1, 2, 0, 3).reshape(kv_heads, group * n, dim)
    mask = None
    if n > 1:
        queries = torch.arange(context - n, context, device=q.device)
        mask = torch.arange(context, device=q.device) <= queries[:, None]  # [n, C]
        mask = mask.repeat(group, 1)  # [G * n, C]
    o = F.scaled_dot_product_attention(
        q[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None], attn_mask=mask
    )[0]  # [Hkv, G * n, D]
    return o.view(kv_heads, group, n, dim).permute(2, 0, 1, 3).reshape(n, heads, dim)

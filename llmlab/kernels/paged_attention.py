"""Attention over a paged cache: the spec in plain torch, and the call that runs the kernels.

    tokens    q   [ d0 | d1 | d2 | c0 c0 c0 c0 | c1 c1 ]      one step: 3 decodes, 2 chunks
    requests       0    1    2         3           4
                  `-- decode_kernel --'`- prefill_kernel -'

A scheduler that puts decodes first gets the best of both: decodes are split over their context,
chunks are packed into large tiles. Any other order is right too, the prefill kernel takes it all.

It knows nothing of requests beyond lengths and tables, and never reads a length on the host.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from llmlab.kernels.launch import num_sms, require_last_stride_1
from llmlab.kernels.paged_decode import decode_launches
from llmlab.kernels.paged_prefill import prefill_launch
from llmlab.kernels.tuning import Tiles, num_splits


def paged_attention_spec(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    query_start: torch.Tensor,
    context_len: torch.Tensor,
    block_table: torch.Tensor,
    window: int = 0,
) -> torch.Tensor:
    """What the kernels compute, in float64, one request and head at a time.

    q [T, Hq, D]; caches [N, B, Hkv, D]; query_start [R + 1]; context_len [R]; block_table [R, M].
    Returns [T, Hq, D] float64. The query at position p sees keys j <= p, and with a window W > 0
    only those with p - j < W.
    """
    block_size, kv_heads = k_cache.shape[1], k_cache.shape[2]
    group = q.shape[1] // kv_heads
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    for r, context in enumerate(context_len.tolist()):
        first, last = int(query_start[r]), int(query_start[r + 1])
        position = torch.arange(context - (last - first), context, device=q.device)  # [n]
        key = torch.arange(context, device=q.device)
        pages = block_table[r].long()[key // block_size]
        visible = key <= position[:, None]  # [n, C]
        if window:
            visible &= position[:, None] - key < window
        for head in range(q.shape[1]):
            k = k_cache[pages, key % block_size, head // group].double()  # [C, D]
            v = v_cache[pages, key % block_size, head // group].double()
            scores = q[first:last, head].double() @ k.T / q.shape[2] ** 0.5
            weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
            out[first:last, head] = weights @ v
    return out


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    query_start: torch.Tensor,
    context_len: torch.Tensor,
    block_table: torch.Tensor,
    *,
    num_decodes: int = 0,
    splits: int | None = None,
    window: int = 0,
    tiles: Tiles | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Run the kernels; shapes as in `paged_attention_spec`, the result in q's dtype.

    num_decodes: the first so many requests have one token each, which lies in their own row of q.
    splits: programs per decode's context, None for the heuristic. Rows of q that no request owns
    are left alone.
    """
    _check(q, k_cache, v_cache, block_table, num_decodes, context_len.shape[0])
    out = torch.empty_like(q) if out is None else out
    if num_decodes:
        if splits is None:
            most = block_table.shape[1] * k_cache.shape[1]
            splits = num_splits(num_decodes, k_cache.shape[2], most, num_sms(q.device))
        for launch in decode_launches(
            q,
            k_cache,
            v_cache,
            out,
            context_len[:num_decodes],
            block_table[:num_decodes],
            splits=splits,
            window=window,
            tiles=tiles,
        ):
            launch.run()
    if num_decodes < context_len.shape[0]:
        prefill_launch(
            q,
            k_cache,
            v_cache,
            out,
            query_start[num_decodes:],
            context_len[num_decodes:],
            block_table[num_decodes:],
            num_tokens=q.shape[0] - num_decodes,
            window=window,
            tiles=tiles,
        ).run()
    return out


def _check(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    num_decodes: int,
    requests: int,
) -> None:
    heads, dim = q.shape[1:]
    kv_heads = k_cache.shape[2]
    if heads % kv_heads:
        raise ValueError(f"q has {heads} heads: must be a multiple of the cache's {kv_heads}")
    if k_cache.shape != v_cache.shape or k_cache.shape[3] != dim:
        raise ValueError(
            f"caches are {tuple(k_cache.shape)} and {tuple(v_cache.shape)}: "
            f"must be equal, with head dim {dim} as q has"
        )
    if not 0 <= num_decodes <= min(requests, q.shape[0]):
        raise ValueError(f"num_decodes = {num_decodes}: must be in 0..{min(requests, q.shape[0])}")
    for name, x in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache)):
        require_last_stride_1(name, x)
    require_last_stride_1("block_table", block_table)


class BatchLike(Protocol):
    """What `triton_attention` reads of a step's batch (see llmlab.engine.batch.Batch).

    memo["split"], if there: decode_context [R] and prefill_start [R + 1] of a captured mixed step,
    see llmlab.engine.step_buffers.
    """

    query_start: torch.Tensor
    context_len: torch.Tensor
    block_table: torch.Tensor
    query_lens: list[int]
    memo: dict[str, Any]


def leading_decodes(query_lens: list[int]) -> int:
    """How many requests at the front of the batch have exactly one token."""
    for count, n in enumerate(query_lens):
        if n != 1:
            return count
    return len(query_lens)


def triton_attention(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, batch: BatchLike
) -> torch.Tensor:
    """The engine's `attention="triton"`: same arguments and answer as its torch attention."""
    if "split" in batch.memo:
        return _split_on_device(q, k_cache, v_cache, batch)
    return paged_attention(
        q,
        k_cache,
        v_cache,
        batch.query_start,
        batch.context_len,
        batch.block_table,
        num_decodes=leading_decodes(batch.query_lens),
    )


def _split_on_device(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, batch: BatchLike
) -> torch.Tensor:
    """Both kernels over all R requests: the device knows who decodes, a graph stays the same.

    The decode kernel writes zeros to the rows of those that do not decode, so it comes first.
    """
    decode_context, prefill_start = batch.memo["split"]
    table, out = batch.block_table, torch.empty_like(q)
    most = table.shape[1] * k_cache.shape[1]
    requests = min(table.shape[0], q.shape[0])
    splits = num_splits(requests, k_cache.shape[2], most, num_sms(q.device))
    decodes = decode_launches(
        q,
        k_cache,
        v_cache,
        out,
        decode_context[:requests],
        table[:requests],
        splits=splits,
    )
    prefill = prefill_launch(q, k_cache, v_cache, out, prefill_start, batch.context_len, table)
    for launch in (*decodes, prefill):
        launch.run()
    return out

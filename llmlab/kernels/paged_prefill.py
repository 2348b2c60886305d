"""Attention of chunks: requests with any number of query tokens over their paged context.

The G query heads that share a key head are rows of one tile, so a tile reads each key once and
the matrix units get full tiles. Rows run over (token, head) without gaps, for any G:

    row      0      1      2      3      4      5   ...        G = 3
    token    0      0      0      1      1      1
    head     h      h+1    h+2    h      h+1    h+2

What a tile of BLOCK_M rows sees of the context, keys left to right (n queries end at context):

                 0                              first row's position
    first row    xxxxxxxx xxxxxxxx xxxxxxxx xxxx|
                 xxxxxxxx xxxxxxxx xxxxxxxx xxxxx|
    last row     xxxxxxxx xxxxxxxx xxxxxxxx xxxxxxx|
                 [ tiles all rows see  ][ masked  ]

Only the tiles at the edge need a mask. Pages of the next tile are looked up one tile ahead, so
that the load of keys does not wait for the load of their address.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from llmlab.kernels.launch import Launch, capability, next_power_of_2
from llmlab.kernels.online_softmax import LOG2_E, fold_tile
from llmlab.kernels.tuning import Tiles, prefill_tiles


@triton.jit
def find_request(tile, query_start, num_requests, base, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """Which request a tile belongs to: the last r whose first tile is not beyond it.

    Request r owns tiles from (query_start[r] - base) * G // BLOCK_M + r on. That leaves room for
    every ragged end, so the grid depends on T and R alone and no length is read on the host.
    """
    low = 0
    high = num_requests
    while high - low > 1:
        middle = (low + high) // 2
        start = tl.load(query_start + middle)
        ahead = (start - base) * GROUP // BLOCK_M + middle > tile
        high = tl.where(ahead, middle, high)
        low = tl.where(ahead, low, middle)
    return low


@triton.jit
def page_of(table, position, context, PAGE: tl.constexpr):
    """Pages that hold these positions, int64; beyond the context the table is not read."""
    return tl.load(table + position // PAGE, mask=position < context, other=0).to(tl.int64)


@triton.jit(
    do_not_specialize=["query_start", "context_len", "block_table", "num_requests", "table_stride"]
)
def prefill_kernel(
    q,
    k_cache,
    v_cache,
    out,
    query_start,
    context_len,
    block_table,
    num_requests,
    qk_scale,
    q_stride_t,
    q_stride_h,
    k_stride_n,
    k_stride_b,
    k_stride_h,
    v_stride_n,
    v_stride_b,
    v_stride_h,
    out_stride_t,
    out_stride_h,
    table_stride,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
):
    # The last tiles see the longest context: start them first, so that none is left over alone.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    base = tl.load(query_start)
    r = find_request(tile, query_start, num_requests, base, GROUP, BLOCK_M)
    start = tl.load(query_start + r)
    n = tl.load(query_start + r + 1) - start
    context = tl.load(context_len + r)
    first_row = (tile - ((start - base) * GROUP // BLOCK_M + r)) * BLOCK_M
    if first_row >= n * GROUP:
        return

    row = first_row + tl.arange(0, BLOCK_M)
    token = row // GROUP
    head = kv_head * GROUP + row % GROUP
    position = context - n + token  # [M]
    d = tl.arange(0, D_PAD)
    row_mask = (row < n * GROUP)[:, None] & (d < D)[None, :]  # [M, D]
    q_at = (start + token).to(tl.int64)[:, None] * q_stride_t + head[:, None] * q_stride_h + d
    q_tile = tl.load(q + q_at, mask=row_mask, other=0.0)

    first_position = context - n + first_row // GROUP
    end = tl.minimum(context, context - n + (first_row + BLOCK_M - 1) // GROUP + 1)
    low = 0
    full = (first_position + 1) // BLOCK_N * BLOCK_N  # every row sees all keys before this
    if WINDOW > 0:
        low = tl.maximum(0, first_position - WINDOW + 1) // BLOCK_N * BLOCK_N
        full = low
    table = block_table + r.to(tl.int64) * table_stride
    key = tl.arange(0, BLOCK_N)
    d_mask = (d < D)[None, :]
    k_cache += kv_head.to(tl.int64) * k_stride_h
    v_cache += kv_head.to(tl.int64) * v_stride_h

    m = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    l = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, D_PAD], dtype=tl.float32)
    page = page_of(table, low + key, end, PAGE)
    for begin in range(low, full, BLOCK_N):
        offset = (begin + key) % PAGE
        k_at = (page * k_stride_n + offset * k_stride_b)[:, None] + d[None, :]  # [N, D]
        v_at = (page * v_stride_n + offset * v_stride_b)[:, None] + d[None, :]
        page = page_of(table, begin + BLOCK_N + key, end, PAGE)
        if D == D_PAD:
            k = tl.load(k_cache + k_at)
            v = tl.load(v_cache + v_at)
        else:
            k = tl.load(k_cache + k_at, mask=d_mask, other=0.0)
            v = tl.load(v_cache + v_at, mask=d_mask, other=0.0)
        acc, m, l = fold_tile(acc, m, l, q_tile, tl.trans(k), v, qk_scale, True, False)
    for begin in range(full, end, BLOCK_N):
        keys = begin + key
        mask = (keys < end)[:, None] & d_mask
        k_at = (page * k_stride_n + keys % PAGE * k_stride_b)[:, None] + d[None, :]  # [N, D]
        v_at = (page * v_stride_n + keys % PAGE * v_stride_b)[:, None] + d[None, :]
        page = page_of(table, keys + BLOCK_N, end, PAGE)
        k = tl.load(k_cache + k_at, mask=mask, other=0.0)
        v = tl.load(v_cache + v_at, mask=mask, other=0.0)
        visible = keys[None, :] <= position[:, None]
        if WINDOW > 0:
            visible &= position[:, None] - keys[None, :] < WINDOW
        acc, m, l = fold_tile(acc, m, l, q_tile, tl.trans(k), v, qk_scale, visible, True)

    acc = acc / tl.where(l > 0.0, l, 1.0)[:, None]
    out_at = (start + token).to(tl.int64)[:, None] * out_stride_t + head[:, None] * out_stride_h + d
    tl.store(out + out_at, acc.to(out.dtype.element_ty), mask=row_mask)


def prefill_launch(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    out: torch.Tensor,
    query_start: torch.Tensor,
    context_len: torch.Tensor,
    block_table: torch.Tensor,
    *,
    num_tokens: int | None = None,
    window: int = 0,
    tiles: Tiles | None = None,
    arch: int | None = None,
) -> Launch:
    """Launch over the requests of `query_start` [R + 1], `context_len` [R], `block_table` [R, M].

    q, out [T, Hq, D]; caches [N, B, Hkv, D]. `query_start` holds rows of q and may begin after 0;
    `num_tokens` is then how many rows it covers. `arch` as in tuning.prefill_tiles.
    """
    heads, dim = q.shape[1:]
    group = heads // k_cache.shape[2]
    tiles = tiles or prefill_tiles(arch or capability(q.device), dim, q.element_size())
    rows = (q.shape[0] if num_tokens is None else num_tokens) * group
    requests = context_len.shape[0]
    args: dict[str, Any] = {
        "q": q,
        "k_cache": k_cache,
        "v_cache": v_cache,
        "out": out,
        "query_start": query_start,
        "context_len": context_len,
        "block_table": block_table,
        "num_requests": requests,
        "qk_scale": LOG2_E / dim**0.5,
        **{f"q_stride_{s}": q.stride(i) for i, s in enumerate("th")},
        **{f"k_stride_{s}": k_cache.stride(i) for i, s in enumerate("nbh")},
        **{f"v_stride_{s}": v_cache.stride(i) for i, s in enumerate("nbh")},
        **{f"out_stride_{s}": out.stride(i) for i, s in enumerate("th")},
        "table_stride": block_table.stride(0),
    }
    constants = {
        "GROUP": group,
        "D": dim,
        "D_PAD": next_power_of_2(dim),
        "PAGE": k_cache.shape[1],
        "BLOCK_M": tiles.block_m,
        "BLOCK_N": tiles.block_n,
        "WINDOW": window,
    }
    grid = (rows // tiles.block_m + requests, k_cache.shape[2])
    return Launch(prefill_kernel, grid, args, constants, tiles.num_warps, tiles.num_stages)

"""Attention of decodes: one query token a request, its context split over several programs.

One request and key head is too little work to fill a GPU at small batches, so its context is cut
into S splits. Each program folds its own keys and leaves a partial answer, a second kernel merges:

    context   0 ............................................ 1000        (S = 4, split = 256)
    splits    [0, 256)     [256, 512)     [512, 768)     [768, 1000)
    partial   o_0, lse_0   o_1, lse_1     o_2, lse_2     o_3, lse_3
    merge     o = sum_s 2^(lse_s - lse) o_s     with     lse = log2 sum_s 2^lse_s

`lse` is the log2 of the sum of the split's exponentials; an empty split has lse = -inf and leaves
no o. With S = 1 the first kernel writes the answer itself. S is fixed at launch (a captured graph
keeps it), the length of a split comes from the context on the device.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from llmlab.kernels.launch import Launch, capability, next_power_of_2
from llmlab.kernels.online_softmax import LOG2_E, fold_tile
from llmlab.kernels.paged_prefill import page_of
from llmlab.kernels.tuning import MIN_SPLIT, Tiles, decode_tiles


@triton.jit(
    do_not_specialize=["context_len", "block_table", "table_stride", "lse_stride_t", "lse_stride_h"]
)
def decode_kernel(
    q,
    k_cache,
    v_cache,
    out,
    lse,
    context_len,
    block_table,
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
    out_stride_s,
    lse_stride_t,
    lse_stride_h,
    table_stride,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MIN_SPLIT: tl.constexpr,
    WINDOW: tl.constexpr,
    SPLIT: tl.constexpr,
):
    r = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    context = tl.load(context_len + r)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(0, context - WINDOW)
    length = tl.cdiv(tl.cdiv(context - first, tl.num_programs(2)), BLOCK_N) * BLOCK_N
    length = tl.maximum(length, MIN_SPLIT)
    begin_split = first + split * length
    end = tl.minimum(begin_split + length, context)

    row = tl.arange(0, BLOCK_M)
    head = kv_head * GROUP + row
    d = tl.arange(0, D_PAD)
    row_mask = (row < GROUP)[:, None] & (d < D)[None, :]  # [M, D]
    q_tile = tl.load(
        q + r * q_stride_t + head[:, None] * q_stride_h + d[None, :], mask=row_mask, other=0.0
    )
    table = block_table + r * table_stride
    key = tl.arange(0, BLOCK_N)
    k_cache += kv_head.to(tl.int64) * k_stride_h
    v_cache += kv_head.to(tl.int64) * v_stride_h

    m = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    l = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, D_PAD], dtype=tl.float32)
    page = page_of(table, begin_split + key, end, PAGE)
    for begin in range(begin_split, end, BLOCK_N):
        keys = begin + key
        mask = (keys < end)[:, None] & (d < D)[None, :]
        k_at = (page * k_stride_n + keys % PAGE * k_stride_b)[:, None] + d[None, :]  # [N, D]
        v_at = (page * v_stride_n + keys % PAGE * v_stride_b)[:, None] + d[None, :]
        page = page_of(table, keys + BLOCK_N, end, PAGE)
        k = tl.load(k_cache + k_at, mask=mask, other=0.0)
        v = tl.load(v_cache + v_at, mask=mask, other=0.0)
        visible = (keys < end)[None, :]
        acc, m, l = fold_tile(acc, m, l, q_tile, tl.trans(k), v, qk_scale, visible, True)

    acc = acc / tl.where(l > 0.0, l, 1.0)[:, None]
    out_at = r * out_stride_t + head * out_stride_h + split * out_stride_s
    if SPLIT:
        live = begin_split < end
        # An empty split has no o: the merge reads its lse and skips it.
        tl.store(out + out_at[:, None] + d[None, :], acc, mask=row_mask & live)
        lse_at = r * lse_stride_t + head * lse_stride_h + split
        # m = -inf where nothing was seen, and so is lse
        tl.store(lse + lse_at, m + tl.log2(tl.where(l > 0.0, l, 1.0)), mask=row < GROUP)
    else:
        # A padded row has context 0 and gets zeros.
        tl.store(out + out_at[:, None] + d[None, :], acc.to(out.dtype.element_ty), mask=row_mask)


@triton.jit(do_not_specialize=["lse_stride_t", "lse_stride_h", "out_lse_stride_t"])
def merge_kernel(
    partial,
    lse,
    out,
    out_lse,
    partial_stride_t,
    partial_stride_h,
    partial_stride_s,
    lse_stride_t,
    lse_stride_h,
    out_stride_t,
    out_stride_h,
    out_lse_stride_t,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLITS_PAD: tl.constexpr,
    WRITE_LSE: tl.constexpr,
):
    r = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    s = tl.arange(0, SPLITS_PAD)
    d = tl.arange(0, D_PAD)
    lse_at = lse + r * lse_stride_t + head * lse_stride_h + s
    lse_s = tl.load(lse_at, mask=s < SPLITS, other=float("-inf"))  # [S]
    largest = tl.max(lse_s, 0)
    weight = tl.exp2(lse_s - tl.where(largest == float("-inf"), 0.0, largest))
    at = r * partial_stride_t + head * partial_stride_h + s[:, None] * partial_stride_s + d[None, :]
    mask = (lse_s > float("-inf"))[:, None] & (d < D)[None, :]
    o = tl.load(partial + at, mask=mask, other=0.0)  # [S, D]
    total = tl.sum(weight, 0)
    total = tl.where(total > 0.0, total, 1.0)  # all splits empty: o = 0, lse = -inf
    merged = tl.sum(o * weight[:, None], 0) / total
    out_at = out + r * out_stride_t + head * out_stride_h + d
    tl.store(out_at, merged.to(out.dtype.element_ty), mask=d < D)
    if WRITE_LSE:
        tl.store(out_lse + r * out_lse_stride_t + head, largest + tl.log2(total))


def decode_launches(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    out: torch.Tensor,
    context_len: torch.Tensor,
    block_table: torch.Tensor,
    *,
    splits: int,
    window: int = 0,
    tiles: Tiles | None = None,
    min_split: int = MIN_SPLIT,
    arch: int | None = None,
) -> list[Launch]:
    """Launches for R requests with one token each: request r is row r of q.

    q, out [>= R, Hq, D]; caches [N, B, Hkv, D]; context_len [R]; block_table [R, M]. A row of
    context 0 is padding and gets zeros.
    """
    requests, heads, dim = context_len.shape[0], q.shape[1], q.shape[2]
    kv_heads = k_cache.shape[2]
    if tiles is None:
        chip = arch or capability(q.device)
        tiles = decode_tiles(chip, heads // kv_heads, dim, q.element_size())
    target, lse = out, out
    if splits > 1:
        kind = {"dtype": torch.float32, "device": q.device}
        target = torch.empty((requests, heads, splits, dim), **kind)  # type: ignore[call-overload]
        lse = torch.empty((requests, heads, splits), **kind)  # type: ignore[call-overload]
    args: dict[str, Any] = {
        "q": q,
        "k_cache": k_cache,
        "v_cache": v_cache,
        "out": target,
        "lse": lse,
        "context_len": context_len,
        "block_table": block_table,
        "qk_scale": LOG2_E / dim**0.5,
        **{f"q_stride_{s}": q.stride(i) for i, s in enumerate("th")},
        **{f"k_stride_{s}": k_cache.stride(i) for i, s in enumerate("nbh")},
        **{f"v_stride_{s}": v_cache.stride(i) for i, s in enumerate("nbh")},
        **{f"out_stride_{s}": target.stride(i) for i, s in enumerate("th")},
        "out_stride_s": target.stride(2) if splits > 1 else 0,
        **{f"lse_stride_{s}": lse.stride(i) for i, s in enumerate("th")},
        "table_stride": block_table.stride(0),
    }
    constants = {
        "GROUP": heads // kv_heads,
        "D": dim,
        "D_PAD": next_power_of_2(dim),
        "PAGE": k_cache.shape[1],
        "BLOCK_M": max(tiles.block_m, next_power_of_2(heads // kv_heads)),
        "BLOCK_N": tiles.block_n,
        "MIN_SPLIT": min_split,
        "WINDOW": window,
        "SPLIT": splits > 1,
    }
    grid = (requests, kv_heads, splits)
    decode = Launch(decode_kernel, grid, args, constants, tiles.num_warps, tiles.num_stages)
    return [decode, merge_launch(target, lse, out)] if splits > 1 else [decode]


def merge_launch(
    partial: torch.Tensor, lse: torch.Tensor, out: torch.Tensor, out_lse: torch.Tensor | None = None
) -> Launch:
    """Merge partial [R, Hq, S, D] float32 by lse [R, Hq, S] into out [>= R, Hq, D].

    `out_lse` [R, Hq], if given, takes the merged lse. All splits empty gives 0 and -inf.
    """
    requests, heads, splits, dim = partial.shape
    target = lse if out_lse is None else out_lse
    args: dict[str, Any] = {
        "partial": partial,
        "lse": lse,
        "out": out,
        "out_lse": target,
        **{f"partial_stride_{s}": partial.stride(i) for i, s in enumerate("ths")},
        **{f"lse_stride_{s}": lse.stride(i) for i, s in enumerate("th")},
        **{f"out_stride_{s}": out.stride(i) for i, s in enumerate("th")},
        "out_lse_stride_t": target.stride(0),
    }
    constants = {
        "D": dim,
        "D_PAD": next_power_of_2(dim),
        "SPLITS": splits,
        "SPLITS_PAD": next_power_of_2(splits),
        "WRITE_LSE": out_lse is not None,
    }
    return Launch(merge_kernel, (requests, heads), args, constants, num_warps=4)

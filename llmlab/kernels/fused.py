"""From the qkv product to attention's inputs in one kernel: QK-norm, RoPE, KV write.

    qkv row of one token   [ q head 0 | ... | k head 0 | ... | v head 0 | ... ]   Hq + 2 Hkv heads
    program                    norm, rotate     norm, rotate      copy
                                   |                |               |
                                   v                v               v
                               q_out [T]        k_cache[slot]   v_cache[slot]

At batch 1 a layer's time is the number of its kernels more than their bytes, and this replaces
five (two norms, two rotations, the write).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from llmlab.kernels.kv_write import kv_write_spec
from llmlab.kernels.launch import Launch, cdiv, next_power_of_2, require_last_stride_1
from llmlab.kernels.norm import rms_norm_spec
from llmlab.kernels.rope import check_table, rope_spec, rotate, rows_and_warps


def rope_and_write_spec(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    table: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    q_weight: torch.Tensor | None = None,
    k_weight: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> torch.Tensor:
    """qkv [T, Hq + 2 Hkv, D]: writes k and v into the caches, returns q [T, Hq, D] in float64."""
    kv_heads = k_cache.shape[2]
    q, k, v = qkv.double().split((qkv.shape[1] - 2 * kv_heads, kv_heads, kv_heads), dim=1)
    if q_weight is not None and k_weight is not None:
        q, k = rms_norm_spec(q, q_weight, eps)[0], rms_norm_spec(k, k_weight, eps)[0]
    k = rope_spec(k, positions, table).to(k_cache.dtype)
    kv_write_spec(k, v.to(v_cache.dtype), k_cache, v_cache, slots)
    return rope_spec(q, positions, table)


@triton.jit(do_not_specialize=["positions", "slots", "num_tokens"])
def rope_and_write_kernel(
    qkv,
    positions,
    slots,
    table,
    q_weight,
    k_weight,
    q_out,
    k_cache,
    v_cache,
    num_tokens,
    eps,
    qkv_stride_t,
    qkv_stride_h,
    table_stride,
    q_out_stride_t,
    q_out_stride_h,
    k_cache_stride_n,
    k_cache_stride_b,
    k_cache_stride_h,
    v_cache_stride_n,
    v_cache_stride_b,
    v_cache_stride_h,
    PAGE: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PAD: tl.constexpr,
    BLOCK_T: tl.constexpr,
    NORM: tl.constexpr,
):
    t = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    i = tl.arange(0, HALF_PAD)[None, :]
    live = t < num_tokens
    mask = live[:, None] & (i < HALF)  # [BLOCK_T, D / 2]
    at = qkv + t[:, None] * qkv_stride_t + head * qkv_stride_h + i
    first = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(at + HALF, mask=mask, other=0.0).to(tl.float32)

    if head < HEADS + KV_HEADS:  # q or k
        if NORM:
            squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
            scale = tl.rsqrt(squares / (2 * HALF) + eps)[:, None]
            weight = q_weight + i
            if head >= HEADS:
                weight = k_weight + i
            first = first * scale * tl.load(weight, mask=i < HALF, other=0.0).to(tl.float32)
            second = (
                second * scale * tl.load(weight + HALF, mask=i < HALF, other=0.0).to(tl.float32)
            )
        position = tl.load(positions + t, mask=live, other=0).to(tl.int64)
        row = table + position[:, None] * table_stride + i
        cos = tl.load(row, mask=mask, other=0.0)
        sin = tl.load(row + HALF, mask=mask, other=0.0)
        first, second = rotate(first, second, cos, sin)

    if head < HEADS:
        q_at = q_out + t[:, None] * q_out_stride_t + head * q_out_stride_h + i
        tl.store(q_at, first.to(q_out.dtype.element_ty), mask=mask)
        tl.store(q_at + HALF, second.to(q_out.dtype.element_ty), mask=mask)
    else:
        slot = tl.load(slots + t, mask=live, other=-1).to(tl.int64)
        block = slot // PAGE
        offset = slot % PAGE
        write = mask & (slot >= 0)[:, None]
        if head < HEADS + KV_HEADS:
            k_at = block * k_cache_stride_n + offset * k_cache_stride_b
            k_at = k_cache + k_at[:, None] + (head - HEADS) * k_cache_stride_h + i
            tl.store(k_at, first.to(k_cache.dtype.element_ty), mask=write)
            tl.store(k_at + HALF, second.to(k_cache.dtype.element_ty), mask=write)
        else:
            v_at = block * v_cache_stride_n + offset * v_cache_stride_b
            v_at = v_cache + v_at[:, None] + (head - HEADS - KV_HEADS) * v_cache_stride_h + i
            tl.store(v_at, first.to(v_cache.dtype.element_ty), mask=write)
            tl.store(v_at + HALF, second.to(v_cache.dtype.element_ty), mask=write)


def rope_and_write_launch(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    table: torch.Tensor,
    q_out: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    q_weight: torch.Tensor | None = None,
    k_weight: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> Launch:
    """One program a head of q, k and v and BLOCK_T tokens."""
    num_tokens, all_heads, dim = qkv.shape
    kv_heads = k_cache.shape[2]
    block, warps = rows_and_warps(num_tokens, dim)
    norm = q_weight is not None
    args: dict[str, Any] = {
        "qkv": qkv,
        "positions": positions,
        "slots": slots,
        "table": table,
        "q_weight": q_weight if norm else table,
        "k_weight": k_weight if norm else table,
        "q_out": q_out,
        "k_cache": k_cache,
        "v_cache": v_cache,
        "num_tokens": num_tokens,
        "eps": eps,
        **{f"qkv_stride_{s}": qkv.stride(n) for n, s in enumerate("th")},
        "table_stride": table.stride(0),
        **{f"q_out_stride_{s}": q_out.stride(n) for n, s in enumerate("th")},
        **{f"k_cache_stride_{s}": k_cache.stride(n) for n, s in enumerate("nbh")},
        **{f"v_cache_stride_{s}": v_cache.stride(n) for n, s in enumerate("nbh")},
    }
    constants = {
        "PAGE": k_cache.shape[1],
        "HEADS": all_heads - 2 * kv_heads,
        "KV_HEADS": kv_heads,
        "HALF": dim // 2,
        "HALF_PAD": next_power_of_2(dim // 2),
        "BLOCK_T": block,
        "NORM": norm,
    }
    grid = (cdiv(num_tokens, block), all_heads)
    return Launch(rope_and_write_kernel, grid, args, constants, num_warps=warps)


def rope_and_write(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    table: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    q_weight: torch.Tensor | None = None,
    k_weight: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> torch.Tensor:
    """qkv [T, Hq + 2 Hkv, D] -> q [T, Hq, D]; k and v go to the caches [N, B, Hkv, D] at `slots`.

    positions, slots [T] (slot -1: not written); table from `rope_table`. With `q_weight` and
    `k_weight` [D] the heads of q and k are normalised first, as Qwen3 does.
    """
    check_table(table, qkv.shape[-1])
    if (q_weight is None) != (k_weight is None):
        raise ValueError("q_weight and k_weight: give both or neither")
    for name, t in (("qkv", qkv), ("table", table), ("k_cache", k_cache), ("v_cache", v_cache)):
        require_last_stride_1(name, t)
    shape = (qkv.shape[0], qkv.shape[1] - 2 * k_cache.shape[2], qkv.shape[2])
    q = torch.empty(shape, dtype=qkv.dtype, device=qkv.device)
    rope_and_write_launch(
        qkv, positions, slots, table, q, k_cache, v_cache, q_weight, k_weight, eps
    ).run()
    return q

"""Put this step's keys and values into the paged cache, by slot.

    slot = block * block_size + offset        -1: a padded row, nothing is written

Rows beyond the slots are padding too (a captured graph runs with a fixed number of rows).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from llmlab.kernels.launch import Launch, next_power_of_2, require_last_stride_1


def kv_write_spec(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """k, v [T, Hkv, D] into caches [N, B, Hkv, D] at `slots` [<= T], one row at a time."""
    block_size = k_cache.shape[1]
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            k_cache[slot // block_size, slot % block_size] = k[row]
            v_cache[slot // block_size, slot % block_size] = v[row]


@triton.jit(do_not_specialize=["slots"])
def kv_write_kernel(
    k,
    v,
    k_cache,
    v_cache,
    slots,
    k_stride_t,
    k_stride_h,
    v_stride_t,
    v_stride_h,
    k_cache_stride_n,
    k_cache_stride_b,
    k_cache_stride_h,
    v_cache_stride_n,
    v_cache_stride_b,
    v_cache_stride_h,
    PAGE: tl.constexpr,
    HEADS: tl.constexpr,
    HEADS_PAD: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    if slot < 0:
        return
    block = slot // PAGE
    offset = slot % PAGE
    h = tl.arange(0, HEADS_PAD)[:, None].to(tl.int64)
    d = tl.arange(0, D_PAD)[None, :]
    mask = (h < HEADS) & (d < D)  # [Hkv, D]
    key = tl.load(k + row * k_stride_t + h * k_stride_h + d, mask=mask)
    value = tl.load(v + row * v_stride_t + h * v_stride_h + d, mask=mask)
    k_at = block * k_cache_stride_n + offset * k_cache_stride_b + h * k_cache_stride_h + d
    v_at = block * v_cache_stride_n + offset * v_cache_stride_b + h * v_cache_stride_h + d
    tl.store(k_cache + k_at, key, mask=mask)
    tl.store(v_cache + v_at, value, mask=mask)


def kv_write_launch(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
) -> Launch:
    """One program a slot; all heads of a token lie together in k, v and mostly in the cache."""
    heads, dim = k.shape[1:]
    args = {
        "k": k,
        "v": v,
        "k_cache": k_cache,
        "v_cache": v_cache,
        "slots": slots,
        **{f"k_stride_{s}": k.stride(i) for i, s in enumerate("th")},
        **{f"v_stride_{s}": v.stride(i) for i, s in enumerate("th")},
        **{f"k_cache_stride_{s}": k_cache.stride(i) for i, s in enumerate("nbh")},
        **{f"v_cache_stride_{s}": v_cache.stride(i) for i, s in enumerate("nbh")},
    }
    constants = {
        "PAGE": k_cache.shape[1],
        "HEADS": heads,
        "HEADS_PAD": next_power_of_2(heads),
        "D": dim,
        "D_PAD": next_power_of_2(dim),
    }
    return Launch(kv_write_kernel, (slots.shape[0],), args, constants, num_warps=4)


def kv_write(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Write k, v [T, Hkv, D] into the caches [N, B, Hkv, D] at `slots` [S], S <= T."""
    if slots.shape[0] > k.shape[0] or k.shape != v.shape:
        raise ValueError(
            f"k {tuple(k.shape)}, v {tuple(v.shape)}, slots {tuple(slots.shape)}: "
            "k and v must be equal, with at least as many rows as slots"
        )
    for name, t in (("k", k), ("v", v), ("k_cache", k_cache), ("v_cache", v_cache)):
        require_last_stride_1(name, t)
    kv_write_launch(k, v, k_cache, v_cache, slots).run()

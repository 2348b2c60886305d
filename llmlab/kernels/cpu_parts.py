"""The small parts of a transformer block on the CPU, each one pass over its data.

Every torch operation costs a few microseconds before it computes anything, and a decode step has
hundreds. Here a block needs five calls beside its four products:

    add_norm   rope_write   attend (cpu_attention.py)   add_norm   silu_mul

Compiled by numba, in float32. Sizes come first in each part's arguments, see `cpu_team`.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numba import carray, cfunc, njit

from llmlab.kernels.cpu_cache import put
from llmlab.kernels.cpu_share import OPTIONS, PART, share

f32, i32 = np.float32, np.int32


@njit(error_model="numpy", fastmath={"contract"}, inline="always")
def exp(x):
    """e^x to about 1e-7 of its value: x = n ln 2 + r, a polynomial in r (Moshier's Cephes), 2^n.

    In plain arithmetic, so that it is computed for a whole vector at once. NaN stays NaN.
    """
    x = f32(-87.0) if x < f32(-87.0) else x
    x = f32(89.0) if x > f32(89.0) else x  # 2^128 is infinity
    n = np.floor(x * f32(1.4426950408889634) + f32(0.5))
    r = x - n * f32(0.693359375)
    r = r - n * f32(-2.12194440e-4)
    p = f32(1.9875691500e-4)
    p = p * r + f32(1.3981999507e-3)
    p = p * r + f32(8.3334519073e-3)
    p = p * r + f32(4.1665795894e-2)
    p = p * r + f32(1.6666665459e-1)
    p = p * r + f32(5.0000001201e-1)
    p = p * r * r + r + f32(1.0)
    return p * i32((i32(n) + i32(127)) << i32(23)).view(f32)


@njit(error_model="numpy", fastmath=OPTIONS["fastmath"], inline="always")
def softmax(scores, count, scale):
    """The first `count` scores, scaled, become weights that sum to 1."""
    top = scores[0]
    for i in range(count):
        top = max(top, scores[i])
    total = f32(0)
    for i in range(count):
        e = exp((scores[i] - top) * scale)
        scores[i] = e
        total += e
    share_of = f32(1) / total
    for i in range(count):
        scores[i] *= share_of


@cfunc(PART, **OPTIONS)
def add_norm(arguments):
    """residual += delta (if there is one); out = RMSNorm(residual) * weight. Rows [T, E]."""
    size = carray(arguments[0], 3, dtype=np.int64)
    rows, width, has_delta = size[0], size[1], size[2]
    eps = carray(arguments[1], 1, dtype=np.float32)[0]
    residual = carray(arguments[2], (rows, width), dtype=np.float32)
    delta = carray(arguments[3], (rows, width), dtype=np.float32)
    weight = carray(arguments[4], width, dtype=np.float32)
    out = carray(arguments[5], (rows, width), dtype=np.float32)
    first, last = share(rows)
    for t in range(first, last):
        if has_delta:
            for i in range(width):
                residual[t, i] += delta[t, i]
        total = f32(0)
        for i in range(width):
            total += residual[t, i] * residual[t, i]
        scale = f32(1) / math.sqrt(total / f32(width) + eps)
        for i in range(width):
            out[t, i] = residual[t, i] * scale * weight[i]


@njit(error_model="numpy", inline="always")
def rotated(x, cos, sin, out, scale, half):
    """out = scale * x, rotated; x, out [D], the first half of `sin` has its sign turned."""
    for i in range(half):
        a, b = x[i] * scale, x[half + i] * scale
        out[i] = a * cos[i] + b * sin[i]
        out[half + i] = b * cos[half + i] + a * sin[half + i]


@cache
def rope_write_for(half: int) -> Any:
    """The part for a pool of float32, or of 16 bits if half is 1."""

    @cfunc(PART, **OPTIONS)
    def rope_write(arguments):
        """Rotate queries and keys of qkv [T, Hq + 2 Hkv, D] in place; keys, values to their slots.

        Where the model has norms of single heads (Qwen3), they come first. A slot of -1 is padding.
        """
        size = carray(arguments[0], 7, dtype=np.int64)
        rows, heads, kv_heads, dim, has_norms = size[0], size[1], size[2], size[3], size[4]
        k_cache, v_cache = size[5], size[6]  # addresses
        eps = carray(arguments[1], 1, dtype=np.float32)[0]
        both = heads + kv_heads
        qkv = carray(arguments[2], (rows, both + kv_heads, dim), dtype=np.float32)
        positions = carray(arguments[3], rows, dtype=np.int64)
        slots = carray(arguments[4], rows, dtype=np.int64)
        # How long the table and the pool are, is the caller's business.
        cos = carray(arguments[5], (1 << 40, dim), dtype=np.float32)
        sin = carray(arguments[6], (1 << 40, dim), dtype=np.float32)
        norms = carray(arguments[7], (2, dim), dtype=np.float32)
        first, last = share(rows)
        for t in range(first, last):
            place, slot = positions[t], slots[t]
            for h in range(both):
                x = qkv[t, h]
                scale = f32(1)
                if has_norms:
                    total = f32(0)
                    for i in range(dim):
                        total += x[i] * x[i]
                    scale = f32(1) / math.sqrt(total / f32(dim) + eps)
                    for i in range(dim):
                        x[i] *= norms[0 if h < heads else 1, i]
                rotated(x, cos[place], sin[place], x, scale, dim // 2)
                if h >= heads and slot >= 0:
                    to = (slot * kv_heads + h - heads) * dim
                    for i in range(dim):
                        put(half, k_cache, to + i, x[i])
            if slot >= 0:
                for h in range(kv_heads):
                    to = (slot * kv_heads + h) * dim
                    for i in range(dim):
                        put(half, v_cache, to + i, qkv[t, both + h, i])

    return rope_write


@cfunc(PART, **OPTIONS)
def silu_mul(arguments):
    """out = silu(gate) * up, with gate and up side by side: [T, 2, I] to [T, I]."""
    size = carray(arguments[0], 2, dtype=np.int64)
    rows, width = size[0], size[1]
    both = carray(arguments[1], (rows, 2, width), dtype=np.float32)
    out = carray(arguments[2], (rows, width), dtype=np.float32)
    first, last = share(rows)
    for t in range(first, last):
        for i in range(width):
            gate = both[t, 0, i]
            out[t, i] = gate / (f32(1) + exp(-gate)) * both[t, 1, i]

"""Decode attention on the CPU, straight from the pages: nothing is gathered, nothing is padded.

One query a request. Work is dealt out by (request, key head): its keys are read once, for all the
query heads that share them, then its values. Compiled by numba for one head size, in float32.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numba import carray, cfunc

from llmlab.kernels.cpu_parts import exp, f32
from llmlab.kernels.cpu_team import OPTIONS, PART, share, thread_rank


@cache
def attend_for(dim: int, group: int) -> Any:
    """The part for heads of `dim` values, `group` query heads to a key head.

    Both are constants of the compiled code: loops over them are unrolled into registers.
    """
    scale = f32(1 / math.sqrt(dim))

    @cfunc(PART, **OPTIONS)
    def attend(arguments):
        """Rows of `qkv` named by `tokens` look at `lens` cached tokens each; out [T, Hq, D]."""
        size = carray(arguments[0], 6, dtype=np.int64)
        requests, kv_heads, block = size[0], size[1], size[2]
        table_width, q_stride, longest = size[3], size[4], size[5]
        qkv = carray(arguments[1], (1 << 40, q_stride), dtype=np.float32)
        k_cache = carray(arguments[2], (1 << 40, kv_heads, dim), dtype=np.float32)
        v_cache = carray(arguments[3], (1 << 40, kv_heads, dim), dtype=np.float32)
        table = carray(arguments[4], (1 << 40, table_width), dtype=np.int32)
        lens = carray(arguments[5], 1 << 40, dtype=np.int32)
        rows = carray(arguments[6], (2, requests), dtype=np.int64)
        out = carray(arguments[7], (1 << 40, kv_heads, group, dim), dtype=np.float32)
        scores = carray(arguments[8], (1 << 20, group, longest), dtype=np.float32)[thread_rank()]
        first, last = share(requests * kv_heads)
        for item in range(first, last):
            r, token = rows[0, item // kv_heads], rows[1, item // kv_heads]
            h = item % kv_heads
            context = lens[r]
            blocks = (context + block - 1) // block
            q = qkv[token, h * group * dim : (h + 1) * group * dim]
            for b in range(blocks):
                slot = np.int64(table[r, b]) * block
                for i in range(min(block, context - b * block)):
                    k = k_cache[slot + i, h]
                    for g in range(group):
                        dot = f32(0)
                        for d in range(dim):
                            dot += q[g * dim + d] * k[d]
                        scores[g, b * block + i] = dot * scale
            o = out[token, h]
            for g in range(group):
                top = scores[g, 0]
                for i in range(context):
                    top = max(top, scores[g, i])
                total = f32(0)
                for i in range(context):
                    e = exp(scores[g, i] - top)
                    scores[g, i] = e
                    total += e
                share_of = f32(1) / total
                for i in range(context):
                    scores[g, i] *= share_of
                for d in range(dim):
                    o[g, d] = f32(0)
            for b in range(blocks):
                slot = np.int64(table[r, b]) * block
                for i in range(min(block, context - b * block)):
                    v = v_cache[slot + i, h]
                    for g in range(group):
                        p = scores[g, b * block + i]
                        for d in range(dim):
                            o[g, d] += p * v[d]

    return attend

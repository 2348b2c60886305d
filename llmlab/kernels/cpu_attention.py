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

from llmlab.kernels.cpu_dots import dots_for, sums_for
from llmlab.kernels.cpu_parts import exp, f32
from llmlab.kernels.cpu_team import OPTIONS, PART, share, thread_rank


@cache
def attend_for(dim: int, group: int) -> Any:
    """The part for heads of `dim` values, `group` query heads to a key head.

    Both are constants of the compiled code, see `cpu_dots`.
    """
    scale = f32(1 / math.sqrt(dim))

    dots, sums = dots_for(dim, group), sums_for(dim, group)

    @cfunc(PART, **OPTIONS)
    def attend(arguments):
        """Rows of `qkv` named by `rows` look at `lens` cached tokens each; out [T, Hq, D]."""
        size = carray(arguments[0], 10, dtype=np.int64)
        requests, kv_heads, block = size[0], size[1], size[2]
        table_width, q_stride, longest = size[3], size[4], size[5]
        qkv, keys, values, result = size[6], size[7], size[8], size[9]  # addresses
        table = carray(arguments[1], (1 << 40, table_width), dtype=np.int32)
        lens = carray(arguments[2], 1 << 40, dtype=np.int32)
        rows = carray(arguments[3], (2, requests), dtype=np.int64)
        out = carray(arguments[4], (1 << 40, kv_heads, group, dim), dtype=np.float32)
        scores = carray(arguments[5], (1 << 20, group, longest), dtype=np.float32)[thread_rank()]
        scratch = scores.ctypes.data
        token_bytes = 4 * kv_heads * dim
        first, last = share(requests * kv_heads)
        for item in range(first, last):
            r, token = rows[0, item // kv_heads], rows[1, item // kv_heads]
            h = item % kv_heads
            context = np.int64(lens[r])
            blocks = (context + block - 1) // block
            q = qkv + 4 * (token * q_stride + h * group * dim)
            for b in range(blocks):
                k = keys + np.int64(table[r, b]) * block * token_bytes + 4 * h * dim
                count = min(block, context - b * block)
                dots(q, k, token_bytes, count, scratch + 4 * b * block, 4 * longest)
            o = out[token, h]
            for g in range(group):
                top = scores[g, 0]
                for i in range(context):
                    top = max(top, scores[g, i])
                total = f32(0)
                for i in range(context):
                    e = exp((scores[g, i] - top) * scale)
                    scores[g, i] = e
                    total += e
                share_of = f32(1) / total
                for i in range(context):
                    scores[g, i] *= share_of
                for d in range(dim):
                    o[g, d] = f32(0)
            to = result + 4 * (token * kv_heads + h) * group * dim
            for b in range(blocks):
                v = values + np.int64(table[r, b]) * block * token_bytes + 4 * h * dim
                count = min(block, context - b * block)
                sums(scratch + 4 * b * block, 4 * longest, v, token_bytes, count, to)

    return attend

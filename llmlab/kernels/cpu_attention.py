"""Decode attention on the CPU, straight from the pages: nothing is gathered, nothing is padded.

One query a request. Work is dealt out by (request, key head): its keys are read once, for all the
query heads that share them, then its values; the key heads of a request that fall to one thread
together, page by page. Compiled by numba for one head size; keys and values in float32 or 16 bits.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numba import carray, cfunc

from llmlab.kernels.cpu_dots import dots, sums
from llmlab.kernels.cpu_parts import f32, softmax
from llmlab.kernels.cpu_share import OPTIONS, PART, share, thread_rank


@cache
def attend_for(dim: int, group: int, half: int) -> Any:
    """The part for heads of `dim` values, `group` query heads to a key head.

    half: 1 if keys and values are in 16 bits. All are constants of the compiled code, see
    `cpu_dots`.
    """
    size_of = 2 if half else 4
    scale = f32(1 / math.sqrt(dim))

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
        out = carray(arguments[4], (1 << 40, kv_heads * group, dim), dtype=np.float32)
        heads = kv_heads * group
        scores = carray(arguments[5], (1 << 20, heads, longest), dtype=np.float32)[thread_rank()]
        token_bytes = size_of * kv_heads * dim
        page_bytes, step = block * token_bytes, 4 * longest  # step: from head to head
        item, last = share(requests * kv_heads)
        while item < last:
            r, token = rows[0, item // kv_heads], rows[1, item // kv_heads]
            first_head = item % kv_heads
            end_head = min(kv_heads, first_head + last - item)
            item += end_head - first_head
            context = np.int64(lens[r])
            blocks = (context + block - 1) // block
            # While a page is computed, the one after it is on its way.
            values_first = values + np.int64(table[r, 0]) * page_bytes
            following = values_first
            if item < last:
                following = keys + np.int64(table[rows[0, item // kv_heads], 0]) * page_bytes
            for b in range(blocks):
                page = keys + np.int64(table[r, b]) * page_bytes
                ahead = values_first
                if b + 1 < blocks:
                    ahead = keys + np.int64(table[r, b + 1]) * page_bytes
                count = min(block, context - b * block)
                for h in range(first_head, end_head):
                    q = qkv + 4 * (token * q_stride + h * group * dim)
                    to = scores[h * group].ctypes.data + 4 * b * block
                    at = size_of * h * dim
                    k, next_k = page + at, ahead + at
                    dots(dim, group, half, q, k, token_bytes, count, to, step, next_k)
            for h in range(first_head * group, end_head * group):
                softmax(scores[h], context, scale)
                for d in range(dim):
                    out[token, h, d] = f32(0)
            for b in range(blocks):
                page = values + np.int64(table[r, b]) * page_bytes
                ahead = following
                if b + 1 < blocks:
                    ahead = values + np.int64(table[r, b + 1]) * page_bytes
                count = min(block, context - b * block)
                for h in range(first_head, end_head):
                    p = scores[h * group].ctypes.data + 4 * b * block
                    to = result + 4 * (token * heads + h * group) * dim
                    at = size_of * h * dim
                    v, next_v = page + at, ahead + at
                    sums(dim, group, half, p, step, v, token_bytes, count, to, next_v)

    return attend

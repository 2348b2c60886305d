"""Attention of many queries of one request on the CPU, as two products per head.

    scores = q K^T     a few queries at a time, only as far as the last of them may look
    out    = softmax(scores) V

Keys and values are first laid out as float32 panels (`cpu_tile`), once for all the queries. Sums
run over the context from first to last, so a query's result does not depend on its chunk.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numba import carray, cfunc

from llmlab.kernels.cpu_cache import cached
from llmlab.kernels.cpu_parts import f32, softmax
from llmlab.kernels.cpu_share import OPTIONS, PART, share, thread_rank
from llmlab.kernels.cpu_tile import Kind, tiles
from llmlab.kernels.cpu_width import COLUMNS, MOST_ROWS

many_rows = tiles(1, MOST_ROWS, Kind())


@cache
def lay_out_for(half: int) -> Any:
    """The part for a pool of float32, or of 16 bits if half is 1."""

    @cfunc(PART, **OPTIONS)
    def lay_out(arguments):
        """Keys to [Hkv, panels, D, COLUMNS] and values to [Hkv, D / COLUMNS, C, COLUMNS]."""
        size = carray(arguments[0], 15, dtype=np.int64)
        context, block, kv_heads, dim = size[1], size[2], size[3], size[5]
        panels = (context + COLUMNS - 1) // COLUMNS
        k_cache, v_cache = size[13], size[14]  # addresses
        table = carray(arguments[1], 1 << 40, dtype=np.int32)
        keys = carray(arguments[2], (kv_heads, panels, dim, COLUMNS), dtype=np.float32)
        values = carray(
            arguments[3], (kv_heads, dim // COLUMNS, context, COLUMNS), dtype=np.float32
        )
        first, last = share(panels)
        for p in range(first, last):
            for i in range(COLUMNS):
                place = p * COLUMNS + i
                if place < context:
                    slot = np.int64(table[place // block]) * block + place % block
                    for h in range(kv_heads):
                        at = (slot * kv_heads + h) * dim
                        for d in range(dim):
                            keys[h, p, d, i] = cached(half, k_cache, at + d)
                        for j in range(dim // COLUMNS):
                            for d in range(COLUMNS):
                                values[h, j, place, d] = cached(half, v_cache, at + j * COLUMNS + d)
                else:
                    for h in range(kv_heads):
                        for d in range(dim):
                            keys[h, p, d, i] = f32(0)

    return lay_out


@cfunc(PART, **OPTIONS)
def attend_chunk(arguments):
    """n queries at the end of a context of C tokens, causal; out [n, Hq, D]."""
    size = carray(arguments[0], 15, dtype=np.int64)
    n, context, kv_heads, group, dim = size[0], size[1], size[3], size[4], size[5]
    q_stride, longest = size[6], size[7]
    panels = (context + COLUMNS - 1) // COLUMNS
    q, out, keys, values = size[8], size[9], size[10], size[11]  # addresses, for the tiles
    heads = kv_heads * group
    width = panels * COLUMNS
    mine = size[12] + thread_rank() * 4 * MOST_ROWS * longest
    scores = carray(arguments[4], (1 << 20, MOST_ROWS * longest), dtype=np.float32)[thread_rank()]
    scale = f32(1) / math.sqrt(f32(dim))
    parts = (n + MOST_ROWS - 1) // MOST_ROWS
    first, last = share(heads * parts)
    for item in range(first, last):
        head, part = item // parts, item % parts
        h = head // group
        start = part * MOST_ROWS
        rows = min(MOST_ROWS, n - start)
        seen = context - n + start + rows  # by the last of these queries
        for p in range((seen + COLUMNS - 1) // COLUMNS):
            many_rows(
                rows,
                q + 4 * (start * q_stride + head * dim),
                q_stride,
                keys + 4 * (h * panels + p) * dim * COLUMNS,
                0,
                dim,
                mine + 4 * p * COLUMNS,
                width,
                0,
                0,
                0,
            )
        for i in range(rows):
            row = scores[i * width : i * width + seen]
            own = context - n + start + i + 1
            softmax(row, own, scale)
            for c in range(own, seen):
                row[c] = f32(0)
        for j in range(dim // COLUMNS):
            many_rows(
                rows,
                mine,
                width,
                values + 4 * (h * (dim // COLUMNS) + j) * context * COLUMNS,
                0,
                seen,
                out + 4 * ((start * heads + head) * dim + j * COLUMNS),
                heads * dim,
                0,
                0,
                0,
            )

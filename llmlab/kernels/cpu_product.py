"""y = x W^T on the CPU with weights in 16 bits, arithmetic in float32.

A decode step is bound by reading the weights, so half the bytes is nearly half the time. They are
packed once, in panels that a tile reads from front to back (`cpu_tile`). Panels are dealt out to
the threads; each is read once a product, whatever the number of rows:

    a block of a panel   16 bits  -> tile -> first rows      and the block in float32, near by
                         float32  -> tile -> next rows       meanwhile the next block is asked for
                         float32  -> tile -> ...

so that with many rows memory is read while the sums of the block before are computed.
"""

from __future__ import annotations

import numpy as np
from numba import carray, cfunc

from llmlab.kernels.cpu_share import OPTIONS, PART, share, thread_rank
from llmlab.kernels.cpu_tile import Kind, tiles
from llmlab.kernels.cpu_width import BLOCK, COLUMNS, MOST_ROWS

# How far before its use a single tile asks for its weights, in bytes: a few hundred cycles.
AHEAD = 2048

# With one row, one panel would leave registers idle and sums waiting for one another.
one_row = tiles(4, 1, Kind(half=True))
only_rows = tiles(1, MOST_ROWS, Kind(half=True, fetch=True))
first_rows = tiles(1, MOST_ROWS, Kind(half=True, keep=True, fetch=True))
next_rows = tiles(1, MOST_ROWS, Kind(fetch=True))


@cfunc(PART, **OPTIONS)
def product(arguments):
    """x [T, K] times packed panels [N / COLUMNS, K, COLUMNS], to y [T, N]."""
    size = carray(arguments[0], 7, dtype=np.int64)
    rows, depth, columns = size[0], size[1], size[2]
    x, w, y = size[3], size[4], size[5]  # addresses, for the tiles
    wide = size[6] + thread_rank() * 4 * COLUMNS * BLOCK
    parts = (rows + MOST_ROWS - 1) // MOST_ROWS  # of nearly equal height: 16 rows are 5 + 5 + 6
    p, last = share(columns // COLUMNS)
    while p < last:
        panel, to = w + 2 * p * depth * COLUMNS, y + 4 * p * COLUMNS
        if rows == 1 and p + 4 <= last:
            one_row(1, x, depth, panel, depth, depth, to, columns, 0, 0, 0)
            p += 4
            continue
        p += 1
        if parts == 1:
            only_rows(rows, x, depth, panel, 0, depth, to, columns, 0, 0, panel + AHEAD)
            continue
        for k in range(0, depth, BLOCK):
            count = min(BLOCK, depth - k)
            at = panel + 2 * COLUMNS * k
            following = at + 2 * COLUMNS * count
            done = 0
            for part in range(parts):
                height = (rows - done) // (parts - part)
                x_at, y_at = x + 4 * (done * depth + k), to + 4 * done * columns
                if part == 0:
                    first_rows(
                        height, x_at, depth, at, 0, count, y_at, columns, k, wide, at + AHEAD
                    )
                else:
                    next_rows(height, x_at, depth, wide, 0, count, y_at, columns, k, 0, following)
                done += height

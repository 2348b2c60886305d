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

from collections.abc import Sequence
from threading import Lock

import numpy as np
import torch
from numba import carray, cfunc

from llmlab.kernels.cpu_memory import Memory
from llmlab.kernels.cpu_team import OPTIONS, PART, Part, most_threads, share, thread_rank
from llmlab.kernels.cpu_tile import COLUMNS, MOST_ROWS, Kind, tiles, vector_width

# Weights of a panel in float32 that stay in the nearest cache (12 KiB with AVX2) beside the rows.
BLOCK = 192
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


def pack(parts: Sequence[torch.Tensor], memory: Memory) -> torch.Tensor:
    """Weights [N, K], one below the other, as float16 panels [ceil(N / COLUMNS), K, COLUMNS].

    The last panel is filled up with 0. Each part is read once, straight into its panels.
    """
    depth, missing = parts[0].shape[1], -sum(len(part) for part in parts) % COLUMNS
    if missing or any(len(part) % COLUMNS for part in parts):
        parts = [torch.cat([*parts, parts[0].new_zeros(missing, depth)])]
    panels = sum(map(len, parts)) // COLUMNS
    packed = memory.take(panels, depth, COLUMNS, dtype=torch.float16)
    first = 0
    for part in parts:
        rows = part.view(-1, COLUMNS, depth)
        packed[first : first + len(rows)] = rows.transpose(1, 2)
        first += len(rows)
    return packed


class Products:
    """Computes the products of one model, one after the other."""

    def __init__(self) -> None:
        if not vector_width():
            raise RuntimeError("this CPU cannot widen 16 bit floats")
        self.memory = Memory()  # of its weights
        self._lock = Lock()  # engines of one model may run in several threads
        self._part = Part(product, sizes=7, addresses=1)
        self._scratch = torch.empty(most_threads() * COLUMNS * BLOCK)
        self._part.sizes[6] = self._scratch.data_ptr()

    def run(self, x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor) -> None:
        """y [T, N] = x [T, K] times packed `weight`; contiguous float32, N whole panels."""
        addresses = x.data_ptr(), weight.data_ptr(), y.data_ptr()
        with self._lock:
            self._part.sizes[0:6] = [*x.shape, y.shape[1], *addresses]
            self._part.run(True)

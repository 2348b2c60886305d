"""y = x W^T on the CPU with weights in 16 bits, arithmetic in float32.

A decode step is bound by reading the weights, so half the bytes is nearly half the time. They are
packed once, in panels that a tile reads from front to back (`cpu_tile`). Panels are dealt out to
the threads; each is read once a product, whatever the number of rows. Where there are rows for
more than one tile, a panel is widened to float32 once and used by all of them.
"""

from __future__ import annotations

from threading import Lock

import numpy as np
import torch
from numba import carray, cfunc, njit

from llmlab.kernels.cpu_team import OPTIONS, PART, Part, most_threads, share, thread_rank
from llmlab.kernels.cpu_tile import COLUMNS, MOST_ROWS, tiles, vector_width, widen

# With few rows one panel would leave registers idle and sums waiting for one another.
FEW = MOST_ROWS // 2
one_row = tiles(4, 1, half=True)
few_rows = tiles(2, FEW, half=True)
some_rows = tiles(1, FEW, half=True)
many_rows = tiles(1, MOST_ROWS, half=False)


@njit(error_model="numpy", inline="always")
def heights(rows, most):
    """Into how many tiles rows are cut; nearly equal ones: 16 rows are 8 + 8, not 12 + 4."""
    return (rows + most - 1) // most


@cfunc(PART, **OPTIONS)
def product(arguments):
    """x [T, K] times packed panels [N / COLUMNS, K, COLUMNS], to y [T, N]."""
    size = carray(arguments[0], 7, dtype=np.int64)
    rows, depth, columns = size[0], size[1], size[2]
    x, w, y, scratch = size[3], size[4], size[5], size[6]  # addresses, for the tiles
    wide = scratch + thread_rank() * 4 * COLUMNS * depth
    is_few = rows <= 3 * FEW
    parts = heights(rows, FEW if is_few else MOST_ROWS)
    p, last = share(columns // COLUMNS)
    while p < last:
        at, to = w + 2 * p * depth * COLUMNS, y + 4 * p * COLUMNS
        panels = 1
        if rows == 1 and p + 4 <= last:
            panels = 4
        elif is_few and p + 2 <= last:
            panels = 2
        elif not is_few:
            widen(at, wide, 2 * depth)
        done = 0
        for part in range(parts):
            height = (rows - done) // (parts - part)
            x_at, y_at = x + 4 * done * depth, to + 4 * done * columns
            if panels == 4:
                one_row(1, x_at, depth, at, depth, y_at, columns)
            elif panels == 2:
                few_rows(height, x_at, depth, at, depth, y_at, columns)
            elif is_few:
                some_rows(height, x_at, depth, at, depth, y_at, columns)
            else:
                many_rows(height, x_at, depth, wide, depth, y_at, columns)
            done += height
        p += panels


def pack(weight: torch.Tensor) -> torch.Tensor:
    """W [N, K] as float16 panels [ceil(N / COLUMNS), K, COLUMNS]; the last filled up with 0."""
    n, depth = weight.shape
    panels = -(-n // COLUMNS)
    packed = torch.zeros(panels, COLUMNS, depth, dtype=torch.float16)
    packed.view(-1, depth)[:n] = weight
    return packed.transpose(1, 2).contiguous()


class Products:
    """Computes the products of one model, one after the other. deepest: the largest K."""

    def __init__(self, deepest: int) -> None:
        if not vector_width():
            raise RuntimeError("this CPU cannot widen 16 bit floats")
        self._lock = Lock()  # engines of one model may run in several threads
        self._part = Part(product, sizes=7, addresses=1)
        self._scratch = torch.empty(most_threads() * COLUMNS * deepest)
        self._part.sizes[6] = self._scratch.data_ptr()

    def run(self, x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor) -> None:
        """y [T, N] = x [T, K] times packed `weight`; contiguous float32, N whole panels."""
        addresses = x.data_ptr(), weight.data_ptr(), y.data_ptr()
        with self._lock:
            self._part.sizes[0:6] = [*x.shape, y.shape[1], *addresses]
            self._part.run(True)

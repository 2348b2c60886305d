"""Weights in 16 bits as the CPU's product reads them, and that product, see `cpu_product`."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

import torch

from llmlab.kernels.cpu_code import code
from llmlab.kernels.cpu_memory import Memory
from llmlab.kernels.cpu_team import Part, most_threads
from llmlab.kernels.cpu_width import BLOCK, COLUMNS, vector_width


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
        self._part = Part(code("cpu_product", "product"), sizes=7, addresses=1)
        self._scratch = torch.empty(most_threads() * COLUMNS * BLOCK)
        self._part.sizes[6] = self._scratch.data_ptr()

    def run(self, x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor) -> None:
        """y [T, N] = x [T, K] times packed `weight`; contiguous float32, N whole panels."""
        addresses = x.data_ptr(), weight.data_ptr(), y.data_ptr()
        with self._lock:
            self._part.sizes[0:6] = [*x.shape, y.shape[1], *addresses]
            self._part.run(True)

"""Memory for weights in large pages, where the system gives them (Linux).

A step reads all weights once. In pages of 4 KiB that is one look-up of an address every few
nanoseconds, and one fault each while loading; in pages of 2 MiB both are gone.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

import torch

AT_ONCE = 64 << 20  # bytes asked of the system at a time; what is not written takes no memory
LINE = 64  # bytes of a cache line: every piece begins at one


def large_pages(size: int) -> torch.Tensor:
    """`size` bytes that begin at zero, in large pages if possible."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(size, dtype=torch.uint8)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


class Memory:
    """Hands out pieces that lie one after the other. They live as long as one is in use."""

    def __init__(self) -> None:
        self._rest = torch.empty(0, dtype=torch.uint8)

    def take(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor."""
        count = torch.Size(shape).numel() * dtype.itemsize
        whole = -(-count // LINE) * LINE
        if whole > len(self._rest):
            self._rest = large_pages(max(whole, AT_ONCE))
        piece, self._rest = self._rest[:count], self._rest[whole:]
        return piece.view(dtype).view(shape)

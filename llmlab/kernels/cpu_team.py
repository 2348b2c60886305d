"""Runs a compiled part of a step on the threads that torch's own products run on.

A second pool of threads would be worse than none: after a product torch's threads spin for a
moment, waiting for the next one, and two pools on the same cores get in each other's way. So a
part goes into the pool that torch already has (GNU OpenMP, in its Linux wheels). Where torch
brings another library, a part runs on the calling thread.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

import torch

# Under these names compiled code finds the pool's functions.
RANK, SIZE = "llmlab_thread_rank", "llmlab_team_size"
# What numba's wrappers would call to report an error; parts raise none.
NEVER_CALLED = ("numba_gil_ensure", "numba_gil_release", "NRT_MemInfo_call_dtor")
NAMES = (RANK, SIZE, *NEVER_CALLED)


@cache
def pool() -> ctypes.PyDLL | None:
    """The library whose threads torch uses, or None if it takes no plain function.

    PyDLL: a part lasts microseconds, and letting go of Python's lock for it would cost more.
    """
    for file in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*")):
        try:
            library = ctypes.PyDLL(str(file))
            library.GOMP_parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
            library.GOMP_parallel.argtypes += [ctypes.c_uint, ctypes.c_uint]
            library.GOMP_parallel.restype = None
        except (OSError, AttributeError):
            continue
        return library
    return None


@ctypes.CFUNCTYPE(ctypes.c_int32)
def _alone_rank() -> int:
    return 0


@ctypes.CFUNCTYPE(ctypes.c_int32)
def _alone_size() -> int:
    return 1


def address_of(name: str) -> int:
    """Where a function or variable that compiled code names lies: the pool's, C's or Python's.

    LookupError if nowhere in this process.
    """
    library = pool()
    found: Any
    if name in (RANK, SIZE):
        found = _alone_rank if name == RANK else _alone_size
        if library is not None:
            found = library.omp_get_thread_num if name == RANK else library.omp_get_num_threads
    else:
        try:
            found = getattr(ctypes.pythonapi, "abort" if name in NEVER_CALLED else name)
        except AttributeError as error:
            raise LookupError(name) from error
    return ctypes.cast(found, ctypes.c_void_p).value or 0


@cache
def most_threads() -> int:
    """Threads a part may run on at most: as many as there is scratch memory for."""
    return max(os.cpu_count() or 1, torch.get_num_threads())


class Part:
    """A compiled part and its arguments: `sizes`, and addresses of which the first is theirs."""

    def __init__(
        self, code: int, *, sizes: int = 1, addresses: int = 1, like: Part | None = None
    ) -> None:
        """code: its address, see `cpu_code`. like: take over the arguments of another part."""
        self.sizes: Any = (ctypes.c_int64 * sizes)() if like is None else like.sizes
        where = ctypes.addressof(self.sizes)
        new: Any = (ctypes.c_int64 * addresses)(where)
        self.addresses: Any = new if like is None else like.addresses
        self._where, self._function = ctypes.addressof(self.addresses), code
        self._alone = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(code)
        library = pool()
        self._parallel = library.GOMP_parallel if library is not None else None

    def run(self, together: bool) -> None:
        """On this thread, or together on all threads that torch may use."""
        if together and self._parallel is not None:
            threads = min(torch.get_num_threads(), most_threads())
            self._parallel(self._function, self._where, threads, 0)
        else:
            self._alone(self._where)

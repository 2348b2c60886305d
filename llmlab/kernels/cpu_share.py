"""What the sources of compiled parts have in common: their signature, and their share of the work.

A part is a numba `cfunc` of one argument: an array of addresses, the first that of its sizes.
"""

from __future__ import annotations

from typing import Any

import numba
from numba import types

from llmlab.kernels.cpu_team import RANK, SIZE

PART = types.void(types.CPointer(types.voidptr))
# Sums may be reordered (else none is vectorised); NaN and infinity keep their meaning.
OPTIONS: dict[str, Any] = {
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "arcp", "nsz"},
}

thread_rank = types.ExternalFunction(RANK, types.int32())
team_size = types.ExternalFunction(SIZE, types.int32())


@numba.njit(error_model="numpy")
def share(count):
    """First and last (exclusive) of `count` items that fall to the calling thread."""
    rank, size = thread_rank(), team_size()
    return count * rank // size, count * (rank + 1) // size

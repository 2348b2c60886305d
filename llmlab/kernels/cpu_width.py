"""How wide this machine's registers are, and the sizes that follow from it."""

from __future__ import annotations

from functools import cache

from llvmlite import binding


@cache
def vector_width() -> int:
    """float32 values in a register of this machine; 0 if it cannot widen 16 bit floats."""
    has = binding.get_host_cpu_features()
    if has.get("avx512f"):
        return 16
    if has.get("avx2") and has.get("f16c"):
        return 8
    return 4 if has.get("neon") and has.get("fp-armv8") else 0


WIDTH = vector_width() or 4
COLUMNS = 2 * WIDTH  # of a panel of weights, see `cpu_tile`
# Two sums a row, two vectors of weights and a row's number have to fit into 32 or 16 registers.
MOST_ROWS = 6 if WIDTH == 8 else 12
# Weights of a panel in float32 that stay in the nearest cache (12 KiB with AVX2) beside the rows.
BLOCK = 192

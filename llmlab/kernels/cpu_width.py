"""What this machine's processor is: how wide its registers are, and what sizes follow."""

from __future__ import annotations

from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
# Linux' names of what LLVM calls by others.
SAME = {"asimd": "neon", "fphp": "fullfp16", "fp": "fp-armv8"}
ABOUT = ("vendor_id", "cpu family", "model", "stepping", "CPU implementer", "CPU part")


@cache
def processor() -> tuple[str, frozenset[str]]:
    """Which processor this is, and its features by LLVM's names.

    From the system where it says so: asking LLVM brings 60 MB into the process.
    """
    try:
        first, _, _ = CPUINFO.read_text(encoding="utf-8").partition("\n\n")
    except OSError:
        first = ""
    pairs = (line.partition(":") for line in first.splitlines())
    lines = {key.strip(): value.strip() for key, _, value in pairs}
    flags = lines.get("flags") or lines.get("Features")
    if not flags:
        return _asked_of_llvm()
    names = frozenset(SAME.get(flag, flag) for flag in flags.split())
    return " ".join(lines.get(key, "") for key in ABOUT), names


def _asked_of_llvm() -> tuple[str, frozenset[str]]:
    from llvmlite import binding

    has = binding.get_host_cpu_features()
    return binding.get_host_cpu_name(), frozenset(name for name, on in has.items() if on)


@cache
def vector_width() -> int:
    """float32 values in a register of this machine; 0 if it cannot widen 16 bit floats."""
    _, has = processor()
    if "avx512f" in has:
        return 16
    if {"avx2", "f16c"} <= has:
        return 8
    return 4 if "neon" in has else 0


WIDTH = vector_width() or 4
COLUMNS = 2 * WIDTH  # of a panel of weights, see `cpu_tile`
# Two sums a row, two vectors of weights and a row's number have to fit into 32 or 16 registers.
MOST_ROWS = 6 if WIDTH == 8 else 12
# Weights of a panel in float32 that stay in the nearest cache (12 KiB with AVX2) beside the rows.
BLOCK = 192

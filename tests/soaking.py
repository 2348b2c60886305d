"""What the soaks share: how memory grew, and a command that prints the figures."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any


def memory(sizes: Sequence[int]) -> dict[str, Any]:
    """Medians in MB of (nearly) ten equal parts of samples in bytes; last over first, less 1."""
    tenth = len(sizes) // 10 or 1
    parts = [median(sizes[i : i + tenth]) for i in range(0, len(sizes), tenth)]
    growth = median(sizes[-tenth:]) / parts[0] - 1
    return {"rss_mb": [round(part / 2**20, 1) for part in parts], "rss_growth": round(growth, 5)}


def main(soak: Callable[[float, int], dict[str, Any]], argv: list[str]) -> int:
    """[SECONDS [SEED]]: 1 if memory grew by more than 1 %."""
    figures = soak(float(argv[0]) if argv else 1200.0, int(argv[1]) if len(argv) > 1 else 0)
    print(json.dumps(figures, indent=1))
    if figures["rss_growth"] > 0.01:
        print("memory grew by more than 1 % after the warm-up", file=sys.stderr)
        return 1
    return 0

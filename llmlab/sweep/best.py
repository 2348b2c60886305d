"""The best cells of a sweep by one figure, kept while results stream by."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any

from llmlab.sweep.cell import FIGURES
from llmlab.sweep.grid import Cell


def smaller_is_better(figure: str) -> bool:
    """Latencies are better small; rates and shares are better large."""
    return figure.endswith("_ms")


def check_figure(figure: str) -> str:
    """A name of FIGURES; ValueError lists them."""
    if figure not in FIGURES:
        raise ValueError(f"--best {figure}: must be one of {', '.join(FIGURES)}")
    return figure


@dataclass
class Best:
    """The `top` cells by `figure` among those within `min_attainment`; ties: the earlier cell.

    Cells without the figure are left out. Memory holds `top` cells, however many go by.
    """

    figure: str
    top: int = 10
    min_attainment: float | None = None
    ranked: int = 0  # cells that took part
    _heap: list[tuple[float, int, Cell, dict[str, Any]]] = field(default_factory=list)

    def add(self, number: int, cell: Cell, figures: dict[str, Any]) -> None:
        """Take part, if the cell has the figure and keeps enough of its limits."""
        value, share = figures.get(self.figure), figures.get("attainment")
        if value is None:
            return
        if self.min_attainment is not None and (share is None or share < self.min_attainment):
            return
        self.ranked += 1
        score = -float(value) if smaller_is_better(self.figure) else float(value)
        heapq.heappush(self._heap, (score, -number, cell, figures))
        if len(self._heap) > self.top:
            heapq.heappop(self._heap)

    def cells(self) -> list[tuple[int, Cell, dict[str, Any]]]:
        """Number, values and figures, best first."""
        return [(-number, cell, seen) for _, number, cell, seen in sorted(self._heap, reverse=True)]

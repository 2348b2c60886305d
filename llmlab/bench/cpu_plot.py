"""The figure of `llmlab bench cpu`: decode steps by batch, beside the floors, as one SVG.

Written by hand rather than by plotly: a picture that opens anywhere, without a browser behind it.
"""

from __future__ import annotations

from html import escape
from math import log10
from typing import Any

from llmlab.bench.cpu_report import OURS, short

WIDTH, HEIGHT = 860, 520
LEFT, RIGHT, TOP, BOTTOM = 70, 640, 76, 450
INK, QUIET, RULE = "#222222", "#5f6368", "#e3e5e8"
COLOURS = {
    OURS: "#0072B2",
    "transformers": "#A8578F",
    "transformers continuous batching": "#7A4B68",
    "llama.cpp F32": "#D55E00",
    "llama.cpp Q4_1": "#0A8F6A",
}


Line = tuple[str, dict[str, float], str, str]
"""Name, ms by batch, colour, dashes."""


class _Axes:
    """Where a batch and a number of milliseconds lie; both axes are logarithmic."""

    def __init__(self, batches: list[int], values: list[float]) -> None:
        self.batches = batches
        self.low, self.high = log10(min(values)) - 0.05, log10(max(values)) + 0.05
        self._wide = max(log10(batches[-1]) - log10(batches[0]), 0.1)

    def x(self, batch: float) -> float:
        return LEFT + (log10(batch) - log10(self.batches[0])) / self._wide * (RIGHT - LEFT)

    def y(self, ms: float) -> float:
        return BOTTOM - (log10(ms) - self.low) / (self.high - self.low) * (BOTTOM - TOP)


def draw(result: dict[str, Any]) -> str:
    """Log-log lines, each with its name at its end; attention's share is a line of its own."""
    lines = _lines(result)
    values = [ms for _, row, _, _ in lines for ms in row.values()]
    axes = _Axes([int(b) for b in result["decode_ms"][OURS]], values)
    ends = _apart([(axes.y(row[list(row)[-1]]), i) for i, (_, row, _, _) in enumerate(lines)])
    drawn = [part for i, line in enumerate(lines) for part in _drawn(line, axes, ends[i])]
    return "\n".join([*_frame(result, axes), *drawn, "</svg>", ""])


def _lines(result: dict[str, Any]) -> list[Line]:
    steps = result["floors"]["decode_step"]
    lines = [(name, row, COLOURS.get(name, QUIET), "") for name, row in result["decode_ms"].items()]
    for dtype, dashes in (("fp32", "6 4"), ("fp16", "2 4")):
        floor = {b: row[f"{dtype}_ms"] for b, row in steps.items()}
        lines.append((f"floor, {dtype} weights", floor, QUIET, dashes))
    attention = {
        b: max(ms["paged"] - ms["without attention"], 1e-3)
        for b, ms in result["forward_ms"].items()
    }
    return [*lines, (f"{OURS}: attention alone", attention, COLOURS[OURS], "1 5")]


def _frame(result: dict[str, Any], axes: _Axes) -> list[str]:
    """Title, rules and numbers."""
    machine = f"{result['cpu']}, {result['threads']} threads, context {result['context']}"
    below = escape(f"milliseconds, lower is better · {machine}")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="{INK}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        '<text x="20" y="30" font-size="17" font-weight="600">'
        "A decode step by batch size, SmolLM2-135M</text>",
        f'<text x="20" y="52" fill="{QUIET}">{below}</text>',
    ]
    for tick in _ticks(axes.low, axes.high):
        y = axes.y(tick)
        parts.append(
            f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="{RULE}"/>'
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="{QUIET}">{tick:g}</text>'
        )
    middle = [(axes.x(batch), BOTTOM + 22, str(batch)) for batch in axes.batches]
    middle.append(((LEFT + RIGHT) / 2, BOTTOM + 46, "requests in the step"))
    parts += [
        f'<text x="{x:.1f}" y="{y}" text-anchor="middle" fill="{QUIET}">{text}</text>'
        for x, y, text in middle
    ]
    return parts


def _drawn(line: Line, axes: _Axes, end: float) -> list[str]:
    """One line, and its name at the height `end`."""
    name, row, colour, dashes = line
    points = [(axes.x(int(b)), axes.y(ms)) for b, ms in row.items()]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    x, y = points[-1]
    parts = [
        f'<polyline points="{path}" fill="none" stroke="{colour}" '
        f'stroke-width="{3 if name == OURS else 2}" stroke-dasharray="{dashes}" '
        'stroke-linejoin="round"/>'
    ]
    if not dashes:
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
    parts.append(
        f'<path d="M{x + 5:.1f} {y:.1f}L{RIGHT + 12} {end:.1f}" '
        f'stroke="{colour}" stroke-width="0.7" opacity="0.6"/>'
        f'<text x="{RIGHT + 16}" y="{end + 4:.1f}" fill="{colour}">{escape(short(name))}</text>'
    )
    return parts


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of every power of ten between the two logarithms."""
    every = [m * 10.0**power for power in range(-4, 6) for m in (1, 2, 5)]
    return [tick for tick in every if low <= log10(tick) <= high]


def _apart(wanted: list[tuple[float, int]], least: float = 18) -> dict[int, float]:
    """Heights for labels, in the order of their lines' ends and never on top of one another."""
    placed: dict[int, float] = {}
    above = -1e9
    for height, index in sorted(wanted):
        above = max(height, above + least)
        placed[index] = above
    over = max(above - BOTTOM, 0)
    below = BOTTOM + 1e9
    for _, index in sorted(wanted, reverse=True):
        below = min(placed[index] if not over else min(placed[index], BOTTOM), below - least)
        placed[index] = below
    return placed

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


def draw(result: dict[str, Any]) -> str:
    """Log-log lines, each with its name at its end; attention's share is a line of its own."""
    decode, steps = result["decode_ms"], result["floors"]["decode_step"]
    batches = [int(b) for b in decode[OURS]]
    lines = [(name, row, COLOURS.get(name, QUIET), "") for name, row in decode.items()]
    for dtype in ("fp32", "fp16"):
        floor = {b: row[f"{dtype}_ms"] for b, row in steps.items()}
        lines.append((f"floor, {dtype} weights", floor, QUIET, "6 4" if dtype == "fp32" else "2 4"))
    attention = {
        b: max(ms["paged"] - ms["without attention"], 1e-3)
        for b, ms in result["forward_ms"].items()
    }
    lines.append((f"{OURS}: attention alone", attention, COLOURS[OURS], "1 5"))
    values = [ms for _, row, _, _ in lines for ms in row.values()]
    low, high = log10(min(v for v in values)) - 0.05, log10(max(values)) + 0.05
    widest = max(log10(batches[-1]) - log10(batches[0]), 0.1)

    def x(batch: float) -> float:
        return LEFT + (log10(batch) - log10(batches[0])) / widest * (RIGHT - LEFT)

    def y(ms: float) -> float:
        return BOTTOM - (log10(ms) - low) / (high - low) * (BOTTOM - TOP)

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
    for tick in _ticks(low, high):
        parts.append(
            f'<path d="M{LEFT} {y(tick):.1f}H{RIGHT}" stroke="{RULE}"/>'
            f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end" fill="{QUIET}">'
            f"{tick:g}</text>"
        )
    for batch in batches:
        parts.append(
            f'<text x="{x(batch):.1f}" y="{BOTTOM + 22}" text-anchor="middle" fill="{QUIET}">'
            f"{batch}</text>"
        )
    middle = (LEFT + RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{BOTTOM + 46}" text-anchor="middle" fill="{QUIET}">'
        "requests in the step</text>"
    )
    ends = _apart([(y(row[list(row)[-1]]), i) for i, (_, row, _, _) in enumerate(lines)])
    for i, (name, row, colour, dashes) in enumerate(lines):
        points = [(x(int(b)), y(ms)) for b, ms in row.items()]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        width = 3 if name == OURS else 2
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}" '
            f'stroke-dasharray="{dashes}" stroke-linejoin="round"/>'
        )
        if not dashes:
            parts += [
                f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>' for px, py in points
            ]
        last, label = points[-1], escape(short(name))
        parts.append(
            f'<path d="M{last[0] + 5:.1f} {last[1]:.1f}L{RIGHT + 12} {ends[i]:.1f}" '
            f'stroke="{colour}" stroke-width="0.7" opacity="0.6"/>'
            f'<text x="{RIGHT + 16}" y="{ends[i] + 4:.1f}" fill="{colour}">{label}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


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

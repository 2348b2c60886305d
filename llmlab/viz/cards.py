"""The four numbers of one request as a card, a table and text, with who feels each."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from llmlab.measure.per_request import RequestMetrics
from llmlab.measure.stats import FULL_P99, percentile
from llmlab.viz.palette import INK


@dataclass(frozen=True)
class Number:
    """One tile: name, value with unit, who feels it, and a note on how it was taken."""

    name: str
    value: str
    unit: str
    felt_by: str
    note: str


def four_numbers(metrics: RequestMetrics | None, server_rate: float | None = None) -> list[Number]:
    """TTFT, TPOT, ITL and output rate. `server_rate` in tokens/s, all requests together."""
    m = metrics
    gaps = (m.itl or []) if m else []
    p50, p95, p99 = (percentile(gaps, q) for q in (50, 95, 99))
    itl_note = f"p50 {_ms(p50)}, p95 {_ms(p95)} ms; {len(gaps)} gaps"
    if 0 < len(gaps) < FULL_P99:
        itl_note += ": so few that p99 is the slowest one or two"
    return [
        Number(
            "TTFT",
            _ms(m.ttft if m else None),
            "ms",
            "Whoever waits for the answer to start.",
            "time to first token: first token - send",
        ),
        Number(
            "TPOT",
            _ms(m.tpot if m else None, 1),
            "ms",
            "Whoever reads a long answer.",
            "time per output token: mean gap after the first token",
        ),
        Number(
            "ITL p99", _ms(p99, 1), "ms", "Whoever sees the text stall.", f"each gap; {itl_note}"
        ),
        Number(
            "Output rate",
            "–" if server_rate is None else f"{server_rate:.1f}",
            "tokens/s",
            "Whoever pays for the machine.",
            "all output tokens of the server / the time they took",
        ),
    ]


def _ms(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


TILE = (
    "flex:1 1 150px;min-width:150px;padding:10px 14px;border-radius:8px;"
    "border:1px solid var(--jp-border-color1,#8884)"
)
SOFT = "var(--jp-ui-font-color2,inherit)"


def card_html(numbers: list[Number]) -> str:
    """Four tiles in a row that wraps; a list for a screen reader."""
    tiles = "".join(
        f'<div role="listitem" style="{TILE}">'
        f'<div style="font-size:13px;color:{SOFT}">{escape(n.name)}</div>'
        f'<div style="color:{INK};margin:2px 0"><span style="font-size:28px;font-weight:600;'
        f'font-variant-numeric:tabular-nums">{escape(n.value)}</span> '
        f'<span style="font-size:14px">{escape(n.unit)}</span></div>'
        f'<div style="font-size:13px;color:{INK};line-height:1.35">{escape(n.felt_by)}</div>'
        f'<div style="font-size:12px;color:{SOFT};line-height:1.35;margin-top:4px">'
        f"{escape(n.note)}</div></div>"
        for n in numbers
    )
    return (
        '<div role="list" aria-label="The four numbers" '
        f'style="display:flex;flex-wrap:wrap;gap:10px;margin:8px 0">{tiles}</div>'
    )


CARD_HEAD = ["number", "value", "unit", "who feels it", "how it was taken"]


def card_rows(numbers: list[Number]) -> list[list[str]]:
    """The card as a table."""
    return [[n.name, n.value, n.unit, n.felt_by, n.note] for n in numbers]

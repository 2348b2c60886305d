"""Each gap between tokens as a dot, with the median, the p99 and a limit: stalls stand out."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmlab.measure.per_request import request_metrics
from llmlab.trace import Trace
from llmlab.viz.palette import QUIET, SERIES, layout

MOST_DOTS = 500


def gaps_by_class(trace: Trace) -> dict[str, list[tuple[float, float]]]:
    """Per class: (ms since the first send, gap in ms), one entry a token after the first."""
    origin = min((r.t_send for r in trace.requests.values() if r.t_send is not None), default=0)
    found: dict[str, list[tuple[float, float]]] = {}
    for record in trace.requests.values():
        m = request_metrics(record)
        if m.itl is None or not record.events:
            continue
        stamps = [e.t for e in record.events[1:] for _ in range(e.k or 1)]
        pairs = [((t - origin) / 1e6, gap) for t, gap in zip(stamps, m.itl, strict=True)]
        found.setdefault(record.class_name, []).extend(pairs)
    return {name: sorted(pairs) for name, pairs in found.items()}


def itl_strip(trace: Trace, limit_ms: float | None = None) -> Any:
    """Plotly figure of the gaps over time, a colour and a marker shape per class."""
    import plotly.graph_objects as go

    figure = go.Figure(layout=layout("", 300))
    symbols = ("circle", "diamond", "square", "triangle-up", "x")
    for number, (name, pairs) in enumerate(gaps_by_class(trace).items()):
        kept = _thinned(pairs)
        figure.add_scatter(
            x=[t for t, _ in kept],
            y=[gap for _, gap in kept],
            mode="markers",
            name=f"{name} ({len(pairs)} gaps)",
            marker={
                "color": SERIES[number % len(SERIES)],
                "symbol": symbols[number % len(symbols)],
                "size": 6,
                "opacity": 0.75,
            },
            hovertemplate="%{y:.1f} ms at %{x:.0f} ms<extra>%{fullData.name}</extra>",
        )
        p99 = float(np.percentile([gap for _, gap in pairs], 99)) if pairs else None
        if p99 is not None:
            figure.add_hline(
                y=p99,
                line={"dash": "dash", "width": 1, "color": SERIES[number % len(SERIES)]},
                annotation_text=f"{name} p99 {p99:.0f} ms",
            )
    if limit_ms is not None:
        figure.add_hline(
            y=limit_ms,
            line={"width": 1, "color": QUIET},
            annotation_text=f"limit {limit_ms:g} ms",
            annotation_position="bottom right",
        )
    note = " · simulated" if trace.simulated else ""
    figure.update_layout(
        title_text="Gaps between tokens" + note,
        xaxis_title_text="ms since the first send",
        yaxis_title_text="gap (ms)",
        yaxis_rangemode="tozero",
    )
    return figure


def _thinned(pairs: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most MOST_DOTS dots: the longest gaps are always kept, the rest evenly picked."""
    if len(pairs) <= MOST_DOTS:
        return pairs
    longest = sorted(pairs, key=lambda p: -p[1])[: MOST_DOTS // 4]
    step = len(pairs) / (MOST_DOTS - len(longest))
    even = [pairs[int(i * step)] for i in range(MOST_DOTS - len(longest))]
    return sorted(set(longest) | set(even))


STRIP_HEAD = ["class", "gaps", "p50 ms", "p95 ms", "p99 ms", "longest ms"]


def strip_rows(trace: Trace) -> list[list[str]]:
    """The figure as a table."""
    rows = []
    for name, pairs in gaps_by_class(trace).items():
        gaps = [gap for _, gap in pairs]
        if gaps:
            marks = [f"{float(np.percentile(gaps, q)):.1f}" for q in (50, 95, 99)]
            rows.append([name, str(len(gaps)), *marks, f"{max(gaps):.1f}"])
    return rows

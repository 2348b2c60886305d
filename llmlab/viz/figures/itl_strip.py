"""Each gap between tokens as a dot, with the median, the p99 and a limit: stalls stand out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from llmlab.measure.per_request import merge_events, request_metrics
from llmlab.trace import Trace
from llmlab.viz.palette import QUIET, SERIES, layout, whence

MOST_DOTS = 500


def gaps_by_class(trace: Trace) -> dict[str, list[tuple[float, float]]]:
    """Per class: (ms since the first send, gap in ms), one entry a token after the first."""
    origin = min((r.t_send for r in trace.requests.values() if r.t_send is not None), default=0)
    found: dict[str, list[tuple[float, float]]] = {}
    for record in trace.requests.values():
        m = request_metrics(record)
        if m.itl is None or not record.events:
            continue
        stamps = [e.t for e in merge_events(record)[1:] for _ in range(e.k or 1)]
        pairs = [((t - origin) / 1e6, gap) for t, gap in zip(stamps, m.itl, strict=True)]
        found.setdefault(record.class_name, []).extend(pairs)
    return {name: sorted(pairs) for name, pairs in found.items()}


PLACES = ((1.0, "right"), (0.0, "left"), (0.5, "center"))
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "x")


def itl_strip(
    trace: Trace, limit_ms: float | None = None, classes: Sequence[str] | None = None
) -> Any:
    """Plotly figure of the gaps over time, a colour and a marker shape per class.

    classes: those that `update_strip` may meet later; None: those of this trace.
    """
    import plotly.graph_objects as go

    figure = go.Figure(layout=layout("", 300))
    for number, name in enumerate(gaps_by_class(trace) if classes is None else classes):
        marker = {
            "color": SERIES[number % len(SERIES)],
            "symbol": SYMBOLS[number % len(SYMBOLS)],
            "size": 6,
            "opacity": 0.75,
        }
        figure.add_scatter(mode="markers", meta=name, marker=marker)
    figure.update_layout(
        xaxis_title_text="ms since the first send",
        yaxis_title_text="gap (ms)",
        yaxis_rangemode="tozero",
    )
    update_strip(figure, trace, limit_ms)
    return figure


def update_strip(figure: Any, trace: Trace, limit_ms: float | None = None) -> None:
    """Redraw in place: the dots, a dashed p99 for each class, the limit as a thin line."""
    found = gaps_by_class(trace)
    lines: list[dict[str, Any]] = []
    labels: list[dict[str, Any]] = []
    for dots in figure.data:
        pairs = found.get(dots.meta, [])
        kept = _thinned(pairs)
        dots.update(
            x=[t for t, _ in kept],
            y=[gap for _, gap in kept],
            name=f"{dots.meta} ({len(pairs)} gaps)",
            hovertemplate="%{y:.1f} ms at %{x:.0f} ms<extra>%{fullData.name}</extra>",
        )
        if pairs:
            p99 = float(np.percentile([gap for _, gap in pairs], 99))
            look = {"dash": "dash", "width": 1, "color": dots.marker.color}
            lines.append(_level(p99, look))
            # Classes share a scale, so their labels stand apart, not on one another.
            place = PLACES[len(labels) % len(PLACES)]
            labels.append(_label(p99, f"{dots.meta} p99 {p99:.0f} ms", "bottom", *place))
    if limit_ms is not None:
        lines.append(_level(limit_ms, {"width": 1, "color": QUIET}))
        labels.append(_label(limit_ms, f"limit {limit_ms:g} ms", "top"))
    figure.layout.shapes, figure.layout.annotations = lines, labels
    figure.layout.title.text = "Gaps between tokens" + whence(trace.simulated)


def _level(y: float, line: dict[str, Any]) -> dict[str, Any]:
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line}


def _label(y: float, text: str, anchor: str, x: float = 1.0, side: str = "right") -> dict[str, Any]:
    place = {"xref": "paper", "x": x, "xanchor": side, "y": y, "yanchor": anchor}
    return {**place, "text": text, "showarrow": False}


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

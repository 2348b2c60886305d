"""Where a client's TTFT went: outside the server, its front, its queue, the first step or steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmlab.measure.per_request import request_metrics
from llmlab.trace import RequestRecord
from llmlab.viz.palette import PREFILL, QUEUE, QUIET, READY, layout


@dataclass(frozen=True)
class Parts:
    """One request's TTFT at the client and its parts, all in ms.

    outside = ttft at the client - ttft at the server: two lengths of time, each by one clock, so
    the two clocks need not agree. front: arrival until the engine took it.
    """

    label: str
    ttft: float
    outside: float
    front: float
    queue: float
    prefill: float


def ttft_parts(label: str, client: RequestRecord, server: RequestRecord) -> Parts:
    """The same request seen from both ends. ValueError where either has no first token."""
    seen, inside = request_metrics(client), request_metrics(server)
    values = (seen.ttft, inside.ttft, inside.preprocessing, inside.queue, inside.prefill)
    if any(value is None for value in values):
        raise ValueError(f"request {client.request_id}: no first token ({client.outcome})")
    total, at_server, front, queue, prefill = (float(value or 0) for value in values)
    return Parts(label, total, total - at_server, front, queue, prefill)


SHOWN = (
    ("outside", "outside the server", QUIET),
    ("front", "server's front", READY),
    ("queue", "queue", QUEUE),
    ("prefill", "first schedule to first token", PREFILL),
)


def parts_figure(rows: Sequence[Parts]) -> Any:
    """Plotly figure: one stacked bar a request, its parts in the order they are listed."""
    import plotly.graph_objects as go

    figure = go.Figure(layout=layout("", 240, barmode="stack"))
    figure.update_layout(legend_traceorder="normal")
    for _, name, colour in SHOWN:
        figure.add_bar(orientation="h", name=name, marker={"color": colour})
    figure.update_layout(xaxis_title_text="ms of the client's TTFT")
    update_parts(figure, rows)
    return figure


def update_parts(figure: Any, rows: Sequence[Parts]) -> None:
    """Redraw in place."""
    for bar, (part, _, _) in zip(figure.data, SHOWN, strict=True):
        bar.update(
            y=[row.label for row in rows],
            x=[getattr(row, part) for row in rows],
            hovertemplate="%{y}<br>%{x:.1f} ms<extra>%{fullData.name}</extra>",
        )
    figure.layout.title.text = (
        "Where the client's TTFT went · measured" if rows else "No request yet"
    )
    figure.layout.height = 220 + 26 * max(2, len(rows))
    figure.layout.margin.b = 140  # below the axis: on a narrow page the legend takes four lines
    figure.layout.yaxis.update(
        autorange="reversed", type="category", showgrid=False, ticklabelstandoff=4
    )


PARTS_HEAD = ["request", "TTFT ms", "outside ms", "front ms", "queue ms", "prefill ms"]


def parts_rows(rows: Sequence[Parts]) -> list[list[str]]:
    """The figure as a table."""
    names = ("ttft", "outside", "front", "queue", "prefill")
    return [[row.label, *(f"{getattr(row, name):.1f}" for name in names)] for row in rows]

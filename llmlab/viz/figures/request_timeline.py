"""One request from send to last token: preprocessing, queue, prefill chunks, decode steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmlab.trace import RequestRecord, Trace
from llmlab.viz.palette import DECODE, HAIRLINE, PREFILL, QUEUE, QUIET, layout, whence

ROWS = ("preprocessing", "queue", "prefill", "decode")
COLOURS = dict(zip(ROWS, (QUIET, QUEUE, PREFILL, DECODE), strict=True))
MOST_BARS = 400


@dataclass(frozen=True)
class Span:
    """One bar: `row`, start and end in ms since send, and what it computed."""

    row: str
    start: float
    end: float
    note: str


def spans(trace: Trace, request_id: str) -> list[Span]:
    """The request's bars in time order; steps come from the trace, nothing is estimated."""
    record = trace.requests[request_id]
    origin = record.t_send
    if origin is None:
        return []
    found = _waiting(record, origin)
    chunk = token = 0
    for step in trace.steps:
        for entry, n, _, decodes in step.scheduled:
            if entry != request_id:
                continue
            if decodes:
                token += 1
                row, note = "decode", f"decode step {token}: 1 token"
            else:
                chunk += 1
                row, note = "prefill", f"prefill chunk {chunk}: {n} tokens"
            others = len(step.scheduled) - 1
            note += f", {others} other request{'s' * (others != 1)} in the step" if others else ""
            found.append(Span(row, _ms(step.t_start, origin), _ms(step.t_end, origin), note))
    return _merged(found)


def _ms(stamp: int, origin: int) -> float:
    return (stamp - origin) / 1e6


def _waiting(record: RequestRecord, origin: int) -> list[Span]:
    found = []
    if record.t_queued is not None:
        end = _ms(record.t_queued, origin)
        found.append(Span("preprocessing", 0.0, end, "text to token ids"))
        if record.t_first_scheduled is not None:
            start, end = end, _ms(record.t_first_scheduled, origin)
            found.append(Span("queue", start, end, "waiting for its first step"))
    for start_ns, end_ns in record.preemptions:
        if end_ns is not None:
            start, end = _ms(start_ns, origin), _ms(end_ns, origin)
            found.append(Span("queue", start, end, "preempted, waiting again"))
    return found


def _merged(found: list[Span]) -> list[Span]:
    """Join neighbours when there are more bars than a page can draw smoothly."""
    factor = -(-len(found) // MOST_BARS)
    if factor <= 1:
        return found
    out: list[Span] = []
    for row in ROWS:
        of_row = [span for span in found if span.row == row]
        for i in range(0, len(of_row), factor):
            group = of_row[i : i + factor]
            note = group[0].note if len(group) == 1 else f"{len(group)} steps: {group[0].note} ..."
            out.append(Span(row, group[0].start, group[-1].end, note))
    return out


def request_timeline(trace: Trace, request_id: str) -> Any:
    """Plotly figure of `spans`, with a line at the first token and at the last."""
    import plotly.graph_objects as go

    figure = go.Figure(layout=layout("", 276, showlegend=False))
    figure.layout.margin.t = 74
    for row in ROWS:
        figure.add_bar(y=[row], x=[0], base=[0], orientation="h", name=row)
    figure.update_layout(
        barmode="overlay",
        xaxis_title_text="ms since the request was sent",
        yaxis={"categoryorder": "array", "categoryarray": list(reversed(ROWS))},
    )
    update_timeline(figure, trace, request_id)
    return figure


def update_timeline(figure: Any, trace: Trace, request_id: str) -> None:
    """Redraw `figure` in place; works on a Figure and on a live FigureWidget."""
    found = spans(trace, request_id)
    for bar in figure.data:
        of_row = [span for span in found if span.row == bar.name]
        bar.update(
            y=[bar.name] * len(of_row),
            x=[span.end - span.start for span in of_row],
            base=[span.start for span in of_row],
            customdata=[[span.note, span.end - span.start, span.start] for span in of_row],
            hovertemplate="%{customdata[0]}<br>%{customdata[1]:.1f} ms, from "
            "%{customdata[2]:.1f} ms<extra></extra>",
            # A hairline between bars of one colour: each decode step can be told from the next.
            marker={"color": COLOURS[bar.name], "line": {"width": 1, "color": HAIRLINE}},
        )
    figure.layout.title.text = "Where one request's time went" + whence(trace.simulated)
    figure.layout.shapes, figure.layout.annotations = _marks(trace.requests[request_id])


def _marks(record: RequestRecord) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    if record.t_send is None or not record.events:
        return [], []
    first = _ms(record.events[0].t, record.t_send)
    # One above the other: side by side they would meet on a narrow page.
    marks = [(first, f"first token: TTFT {first:.0f} ms", "left", 1.12)]
    if len(record.events) > 1:
        last = _ms(record.events[-1].t, record.t_send)
        marks.append((last, f"last token: {last:.0f} ms", "right", 1.0))
    line = {"type": "line", "yref": "paper", "y0": 0, "y1": 1}
    shapes = [
        {**line, "x0": x, "x1": x, "line": {"dash": "dot", "color": QUIET}} for x, *_ in marks
    ]
    notes = [
        {"x": x, "y": y, "yref": "paper", "yanchor": "bottom", "showarrow": False}
        | {"text": text, "xanchor": anchor}
        for x, text, anchor, y in marks
    ]
    return shapes, notes


def timeline_rows(trace: Trace, request_id: str) -> list[list[str]]:
    """The figure as a table: one row a phase with its steps, tokens and time."""
    rows = []
    for row in ROWS:
        of_row = [span for span in spans(trace, request_id) if span.row == row]
        if of_row:
            total = sum(span.end - span.start for span in of_row)
            from_to = f"{of_row[0].start:.1f} to {of_row[-1].end:.1f}"
            rows.append([row, str(len(of_row)), from_to, f"{total:.1f}"])
    return rows


TIMELINE_HEAD = ["phase", "parts", "ms since send", "ms in all"]

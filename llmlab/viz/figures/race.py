"""Policies side by side, one lane per slot: colour is work, a blank is an idle slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmlab.viz.palette import DECODE, PREFILL, QUIET, layout, origin, whence
from llmlab.viz.race import Lap
from llmlab.viz.show import Shown, live_figure, number, shown_table

MOST_BARS = 500
LANE_PX, SMALLEST_LANE_PX = 22, 5
PARTS = (("prefill", PREFILL), ("decode", DECODE))


@dataclass(frozen=True)
class Bar:
    """One request in its slot: ms since the first send."""

    slot: int
    start: float
    first: float
    end: float
    request_id: str
    tokens: int


def lanes(lap: Lap) -> list[Bar]:
    """Each started request in the lowest slot that is free when it starts.

    A request holds its slot from the start of its first step to the end of its last.
    """
    held: dict[str, list[int]] = {}  # id -> start, end of its prompt's last step, end; ns
    for step in lap.trace.steps:
        for name, _, _, decodes in step.scheduled:
            span = held.setdefault(name, [step.t_start, step.t_end, step.t_end])
            span[2] = step.t_end
            if not decodes:
                span[1] = step.t_end
    free = [0] * lap.slots  # when each slot is free again, ns
    bars = []
    for name, stamps in held.items():
        slot = next((i for i, t in enumerate(free) if t <= stamps[0]), free.index(min(free)))
        free[slot] = stamps[2]
        start, first, end = ((t - lap.start) / 1e6 for t in stamps)
        record = lap.trace.requests.get(name)
        bars.append(Bar(slot, start, first, end, name, len(record.events) if record else 0))
    return bars


def race(laps: Sequence[Lap]) -> Any:
    """Plotly figure of the laps, one block of lanes each."""
    import plotly.graph_objects as go

    above = {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 1, "xanchor": "right"}
    figure = go.Figure(layout=layout("", 300, barmode="overlay", bargap=0.2, legend=above))
    for name, colour in PARTS:
        line = {"color": "rgba(255,255,255,0.7)", "width": 1}
        figure.add_bar(orientation="h", name=name, marker={"color": colour, "line": line})
    figure.update_layout(
        xaxis_title_text="ms since all requests were sent",
        xaxis_rangemode="tozero",
        margin_t=70,
    )
    update_race(figure, laps)
    return figure


def update_race(figure: Any, laps: Sequence[Lap]) -> None:
    """Redraw in place."""
    xs: dict[str, tuple[list[float], list[float], list[float], list[str]]] = {
        name: ([], [], [], []) for name, _ in PARTS
    }
    ticks, labels, shapes, top = [], [], [], 0
    for lap in laps:
        for bar in lanes(lap)[: MOST_BARS // max(1, len(laps))]:
            note = f"{lap.policy}, slot {bar.slot + 1}<br>{bar.request_id}: {bar.tokens} tokens"
            for name, start, end in (
                ("prefill", bar.start, bar.first),
                ("decode", bar.first, bar.end),
            ):
                widths, bases, rows, notes = xs[name]
                widths.append(end - start)
                bases.append(start)
                rows.append(top + bar.slot)
                notes.append(f"{note}<br>{name} {end - start:.1f} ms")
        ticks.append(top + (lap.slots - 1) / 2)
        labels.append(f"<b>{lap.policy}</b><br>{lap.ms:,.0f} ms")
        shapes.append(_finish(lap.ms, top - 0.5, top + lap.slots - 0.5))
        top += lap.slots + 1
    for trace in figure.data:
        widths, bases, rows, notes = xs[trace.name]
        trace.update(
            x=widths,
            base=bases,
            y=rows,
            customdata=notes,
            hovertemplate="%{customdata}<extra></extra>",
        )
    simulated = any(lap.trace.simulated for lap in laps)
    figure.layout.title.text = "Who keeps the slots busy?" + whence(simulated)
    figure.layout.height = 120 + max(SMALLEST_LANE_PX * top, min(LANE_PX * top, 420))
    figure.layout.shapes = shapes
    figure.layout.yaxis.update(
        tickvals=ticks, ticktext=labels, range=[top - 1, -1], showgrid=False, zeroline=False
    )


def _finish(ms: float, y0: float, y1: float) -> dict[str, Any]:
    line = {"width": 2, "dash": "dot", "color": QUIET}
    return {"type": "line", "x0": ms, "x1": ms, "y0": y0, "y1": y1, "line": line}


RACE_HEAD = ["policy", "time ms", "steps", "busy slots", "output tok/s", "median E2E ms"]


def race_rows(laps: Sequence[Lap]) -> list[list[str]]:
    """The figure as a table."""
    return [
        [
            lap.policy,
            f"{lap.ms:,.0f}",
            str(len(lap.trace.steps)),
            f"{100 * lap.busy:.0f} %",
            number(1e3 * lap.tokens / lap.ms if lap.ms else None, 0),
            number(lap.median_e2e, 0),
        ]
        for lap in laps
    ]


def race_summary(laps: Sequence[Lap]) -> str:
    """One sentence: who was faster, by what factor, and that it was simulated if it was."""
    if len(laps) < 2 or not all(lap.ms for lap in laps):
        return "The race has not been run to its end yet."
    slowest = max(laps, key=lambda lap: lap.ms)
    fastest = min(laps, key=lambda lap: lap.ms)
    where = origin(laps[0].trace.simulated)
    ratio = slowest.ms / fastest.ms
    if ratio < 1.02:
        return f"{where}: {laps[0].policy} and {laps[1].policy} take the same time within 2 %."
    return f"{where}: {fastest.policy} is {ratio:.2f} times as fast as {slowest.policy}."


def show_race(laps: Sequence[Lap]) -> Shown:
    """The laps as a picture with their table."""
    return shown_table(race_summary(laps), RACE_HEAD, race_rows(laps), live_figure(race(laps)))

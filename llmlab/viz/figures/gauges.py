"""Two gauges a phase: the share of the compute ceiling and of the bandwidth ceiling in use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmlab.perf.hardware import Hardware
from llmlab.perf.roofline import NEAR, PHASES, PhaseSummary
from llmlab.viz.figures.roofline import roof_words
from llmlab.viz.palette import DECODE, PREFILL, QUIET, READY, layout

COLOURS = {"prefill": PREFILL, "decode": DECODE, "mixed": READY}
TRACK = "rgba(122,122,122,0.16)"


def gauges(phases: Sequence[PhaseSummary], simulated: bool) -> Any:
    """Plotly figure: two bars for each phase of `PHASES`, on a track that ends at the ceiling."""
    import plotly.graph_objects as go

    figure = go.Figure(layout=layout("", 330, barmode="overlay", showlegend=False))
    track = {"color": TRACK, "line": {"width": 0}}
    figure.add_bar(name="ceiling", orientation="h", hoverinfo="skip", marker=track)
    figure.add_bar(name="in use", orientation="h", cliponaxis=False)
    figure.update_xaxes(title_text="share of the ceiling, %")
    figure.update_yaxes(autorange="reversed", showgrid=False)
    update_gauges(figure, phases, simulated)
    return figure


def update_gauges(figure: Any, phases: Sequence[PhaseSummary], simulated: bool) -> None:
    """Redraw in place. All phases keep their rows, so that nothing jumps while a run is live."""
    found = {p.phase: p for p in phases}
    labels, shares, colours, texts = [], [], [], []
    for phase in PHASES:
        summary = found.get(phase)
        for name in ("compute", "bandwidth"):
            share = 100 * getattr(summary.whole, f"{name}_share") if summary else 0.0
            labels.append(f"{phase} · {name}")
            shares.append(share)
            colours.append(COLOURS[phase])
            texts.append(_text(share, summary, name))
    track, used = figure.data
    track.update(y=labels, x=[100.0] * len(labels), width=0.62)
    used.update(
        y=labels,
        x=shares,
        width=0.62,
        marker={"color": colours, "line": {"width": 0}},
        text=texts,
        textposition="outside",
        textfont={"color": QUIET},
        hovertemplate="%{y}: %{x:.1f} %<extra></extra>",
    )
    note = "simulated" if simulated else "measured"
    figure.layout.title.text = f"Share of each ceiling in use · {note}"
    # Room for a bar's words on a narrow page too.
    figure.layout.xaxis.range = [0, max(150.0, 1.25 * max(shares) + 45)]
    figure.layout.xaxis.tickvals = [0, 50, 100]
    line = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": 100 * NEAR, "x1": 100 * NEAR}
    figure.layout.shapes = [{**line, "line": {"dash": "dot", "width": 1, "color": QUIET}}]


def _text(share: float, summary: PhaseSummary | None, name: str) -> str:
    if summary is None:
        return "no such step yet"
    near = " near" if summary.whole.near == name else ""
    return f"{share:.0f} %{near}"


def ceilings_text(ceilings: Hardware, dtype: str) -> str:
    """Which ceilings 100 % stands for, and where they come from."""
    measured = "measured" in ceilings.source
    return (
        f"100 % is {_rate(ceilings.flops(dtype), 'FLOP/s')} ({dtype} weights) and "
        f"{_rate(ceilings.bandwidth, 'B/s')}, "
        + ("measured on this machine" if measured else f"the data sheet's of {ceilings.title}")
    )


def _rate(value: float, unit: str) -> str:
    for scale, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G")):
        if value >= scale:
            return f"{value / scale:.3g} {letter}{unit}"
    return f"{value:.3g} {unit}"


def gauges_summary(phases: Sequence[PhaseSummary]) -> str:
    """One sentence: which roof each phase is near."""
    if not phases:
        return "No step yet"
    parts = [f"{p.phase} steps are near {roof_words(p.whole.near)}" for p in phases]
    return "; ".join(parts).capitalize()


GAUGES_HEAD = ["phase", "steps", "median ms", "compute", "bandwidth", "FLOP/B", "nearer roof"]


def gauges_rows(phases: Sequence[PhaseSummary]) -> list[list[str]]:
    """The figure as a table."""
    return [
        [
            p.phase,
            str(p.steps),
            f"{p.median_step_ms:.1f}",
            f"{100 * p.whole.compute_share:.0f} %",
            f"{100 * p.whole.bandwidth_share:.0f} %",
            f"{p.whole.intensity:.1f}",
            p.whole.near,
        ]
        for p in phases
    ]

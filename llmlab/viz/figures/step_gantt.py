"""Every engine step as a bar: how long it took, and how many prompt and decode tokens it held."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmlab.trace import StepRecord, Trace
from llmlab.viz.palette import DECODE, HAIRLINE, PREFILL, QUIET, layout, whence

MOST_STEPS = 500
EDGES = ((40, 1.0), (120, 0.5))  # up to so many bars: width of the hairline between them, px
FEW = 6  # steps whose ends are written on the axis


def step_gantt(trace: Trace, budget: int | None = None) -> Any:
    """Plotly figure; `budget` (max_num_batched_tokens) is drawn as a line if given."""
    import plotly.graph_objects as go

    figure = go.Figure(layout=layout("", 300, barmode="stack", bargap=0))
    for name, colour in (("decode tokens", DECODE), ("prompt tokens", PREFILL)):
        figure.add_bar(name=name, marker={"color": colour, "line": {"width": 0}})
    figure.update_layout(
        xaxis_title_text="ms since the first step", yaxis_title_text="tokens in the step"
    )
    update_gantt(figure, trace, budget)
    return figure


def update_gantt(figure: Any, trace: Trace, budget: int | None = None) -> None:
    """Redraw in place. A bar's width is the step's duration, its height the step's tokens."""
    steps = trace.steps[-MOST_STEPS:]
    origin = steps[0].t_start if steps else 0
    middle = [((s.t_start + s.t_end) / 2 - origin) / 1e6 for s in steps]
    width = [(s.t_end - s.t_start) / 1e6 for s in steps]
    notes = [_note(s) for s in steps]
    # Equal neighbours need a hairline between them, as long as it does not hide the bars.
    width_px = next((px for most, px in EDGES if len(steps) <= most), 0)
    edge = {"width": width_px, "color": HAIRLINE}
    for bar, tokens in zip(
        figure.data,
        ([s.decode_tokens for s in steps], [s.prefill_tokens for s in steps]),
        strict=True,
    ):
        bar.update(
            x=middle,
            y=tokens,
            width=width,
            customdata=notes,
            hovertemplate="%{customdata}<extra></extra>",
            marker={"line": edge},
        )
    cut = f"the last {MOST_STEPS} of " if len(trace.steps) > MOST_STEPS else ""
    title = f"What {cut}{len(trace.steps)} steps computed"
    figure.layout.title.text = title + whence(trace.simulated)
    figure.layout.shapes = []
    if budget is not None:
        line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": budget, "y1": budget}
        figure.layout.shapes = [{**line, "line": {"dash": "dot", "width": 1, "color": QUIET}}]
    # Beside few bars plotly would write their middles, which mean nothing here.
    ends = [(stamp - origin) / 1e6 for s in steps for stamp in (s.t_start, s.t_end)]
    few = sorted(set(ends)) if len(steps) <= FEW else None
    figure.layout.xaxis.tickvals = few
    figure.layout.xaxis.ticktext = few and [f"{ms:g}" for ms in few]
    figure.layout.xaxis.tickmode = "array" if few else "auto"


def _note(step: StepRecord) -> str:
    ms = (step.t_end - step.t_start) / 1e6
    return (
        f"step {step.index}: {ms:.1f} ms<br>{step.decode_tokens} decode + "
        f"{step.prefill_tokens} prompt tokens<br>{step.blocks_used} KV blocks in use"
    )


GANTT_HEAD = ["kind of step", "steps", "tokens", "median ms", "longest ms"]


def gantt_rows(trace: Trace) -> list[list[str]]:
    """The figure as a table: steps by what they held."""
    import statistics

    kinds: dict[str, Callable[[StepRecord], int | bool]] = {
        "decode only": lambda s: s.decode_tokens and not s.prefill_tokens,
        "prompt only": lambda s: s.prefill_tokens and not s.decode_tokens,
        "mixed": lambda s: s.prefill_tokens and s.decode_tokens,
    }
    rows = []
    for kind, holds in kinds.items():
        found = [s for s in trace.steps if holds(s)]
        if found:
            ms = [(s.t_end - s.t_start) / 1e6 for s in found]
            tokens = sum(s.decode_tokens + s.prefill_tokens for s in found)
            rows.append(
                [
                    kind,
                    str(len(found)),
                    str(tokens),
                    f"{statistics.median(ms):.1f}",
                    f"{max(ms):.1f}",
                ]
            )
    return rows

"""The four numbers against the number of users: three small plots over one axis, and a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmlab.measure.metrics import summarize
from llmlab.trace import Trace
from llmlab.viz.palette import AXIS, DECODE, PREFILL, QUIET, READY, layout
from llmlab.viz.show import number


@dataclass(frozen=True)
class Loaded:
    """One run at a number of users. Times in ms, rate in tokens/s; None where undefined."""

    users: int
    ttft: float | None
    tpot: float | None
    itl_p99: float | None
    rate: float | None
    resident_tokens: int | None
    preempted: int
    simulated: bool


def loaded(trace: Trace, users: int) -> Loaded:
    """Medians over requests, p99 over gaps, and the server's output rate, from one trace."""
    summary = summarize(trace)
    whole = summary.all
    return Loaded(
        users,
        whole["ttft"].p50,
        whole["tpot"].p50,
        whole["itl"].p99,
        whole.rates.output_tok_s,
        summary.max_resident_kv_tokens,
        sum(len(r.preemptions) for r in trace.requests.values()),
        trace.simulated,
    )


MOST_LABELS = 3
PLOTS = (("TTFT (ms)", PREFILL), ("TPOT (ms)", DECODE), ("tokens/s", READY))


def load_sweep(runs: Sequence[Loaded], tpot_limit: float | None = None) -> Any:
    """Plotly figure: TTFT, TPOT and output rate over users, on a log axis of users."""
    from plotly.subplots import make_subplots

    titles = [name for name, _ in PLOTS]
    figure = make_subplots(rows=1, cols=3, subplot_titles=titles, horizontal_spacing=0.14)
    figure.update_layout(layout("", 320, showlegend=False))
    for column, (name, colour) in enumerate(PLOTS, 1):
        figure.add_scatter(
            row=1,
            col=column,
            name=name,
            mode="lines+markers",
            line={"color": colour},
            hovertemplate="%{x} users: %{y:.4g}<extra>%{fullData.name}</extra>",
        )
    figure.update_xaxes(type="log", title={"text": "users", "font": {"size": 13}}, **AXIS)
    # Short labels: on a narrow page they stand between two plots.
    figure.update_yaxes(rangemode="tozero", tickformat="~s", **AXIS)
    figure.update_annotations(font_size=13)
    update_sweep(figure, runs, tpot_limit)
    return figure


def update_sweep(figure: Any, runs: Sequence[Loaded], tpot_limit: float | None = None) -> None:
    """Redraw in place; a limit on TPOT is a dashed line in its plot."""
    users = [run.users for run in runs]
    series = ([r.ttft for r in runs], [r.tpot for r in runs], [r.rate for r in runs])
    for line, values in zip(figure.data, series, strict=True):
        line.update(x=users, y=values)
    # Three plots share a narrow page: many labels would run into each other.
    labelled = users[::-1][:: -(-len(users) // MOST_LABELS) or 1]
    figure.update_xaxes(
        tickmode="array", tickangle=0, tickvals=labelled, ticktext=[str(u) for u in labelled]
    )
    simulated = any(run.simulated for run in runs)
    note = "simulated" if simulated else "measured here"
    figure.layout.title.text = f"Under load · {note}" if runs else "No run yet"
    figure.layout.margin.t = 76
    figure.layout.shapes = []
    if tpot_limit is not None:
        line = {"type": "line", "xref": "x2 domain", "yref": "y2", "x0": 0, "x1": 1}
        dashes = {"dash": "dash", "width": 1, "color": QUIET}
        figure.layout.shapes = [{**line, "y0": tpot_limit, "y1": tpot_limit, "line": dashes}]


SWEEP_HEAD = [
    "users",
    "TTFT p50 ms",
    "TPOT p50 ms",
    "ITL p99 ms",
    "output tok/s",
    "most KV tokens",
    "preemptions",
]


def sweep_rows(runs: Sequence[Loaded]) -> list[list[str]]:
    """The figure as a table."""
    return [
        [
            str(r.users),
            number(r.ttft, 0),
            number(r.tpot, 1),
            number(r.itl_p99, 1),
            number(r.rate, 1),
            number(r.resident_tokens, 0),
            str(r.preempted),
        ]
        for r in runs
    ]


def safe_users(runs: Sequence[Loaded], ttft_limit: float, tpot_limit: float) -> int | None:
    """The most users up to which every run meets both limits (equality passes); None: not even
    the fewest."""
    best = None
    for run in sorted(runs, key=lambda r: r.users):
        meets = run.ttft is not None and run.ttft <= ttft_limit
        if not meets or (run.tpot is not None and run.tpot > tpot_limit):
            break
        best = run.users
    return best

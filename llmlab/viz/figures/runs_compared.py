"""Several requests side by side: how long until the first token, how long the rest streamed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmlab.viz.palette import DECODE, PREFILL, layout
from llmlab.viz.show import number


@dataclass(frozen=True)
class Run:
    """One finished request. Times in ms; tpot is None when nothing followed the first token."""

    prompt_tokens: int
    output_tokens: int
    ttft: float
    tpot: float | None
    e2e: float

    @property
    def label(self) -> str:
        return f"{self.prompt_tokens} in, {self.output_tokens} out"

    def __str__(self) -> str:
        tpot = "" if self.tpot is None else f"TPOT {self.tpot:.1f} ms, "
        return f"{self.label}: TTFT {self.ttft:.0f} ms, {tpot}E2E {self.e2e:.0f} ms"


def runs_compared() -> Any:
    """An empty plotly figure; fill it with `update_runs`."""
    import plotly.graph_objects as go

    figure = go.Figure(layout=layout("", 240, barmode="stack"))
    figure.update_layout(legend_traceorder="normal", margin_b=80)
    for name, colour in (("until the first token (TTFT)", PREFILL), ("the rest streams", DECODE)):
        figure.add_bar(orientation="h", name=name, marker={"color": colour})
    figure.update_layout(xaxis_title_text="ms since the request was sent")
    return figure


def update_runs(figure: Any, runs: list[Run]) -> None:
    """Redraw in place: one bar a run, newest at the bottom."""
    labels = [f"{place}: {run.label}" for place, run in enumerate(runs, 1)]
    longest = max((run.e2e for run in runs), default=0.0)
    for bar, widths in zip(
        figure.data,
        ([run.ttft for run in runs], [run.e2e - run.ttft for run in runs]),
        strict=True,
    ):
        bar.update(
            y=labels,
            x=widths,
            # A number that does not fit in its bar is left to the table and the hover.
            text=[f"{width:.0f}" if width > longest / 16 else "" for width in widths],
            textposition="inside",
            textangle=0,
            insidetextanchor="middle",
            textfont={"color": "white"},
            hovertemplate="%{y}<br>%{x:.1f} ms<extra>%{fullData.name}</extra>",
        )
    title = "Which part did the change move?" if runs else "Move a knob: the runs line up here"
    figure.layout.title.text = title
    figure.layout.xaxis.range = [0, 1.06 * longest or 1000]
    figure.layout.height = 200 + 34 * max(2, len(runs))
    figure.layout.yaxis.update(
        autorange="reversed", type="category", showgrid=False, ticklabelstandoff=4
    )


RUNS_HEAD = ["run", "prompt tokens", "output tokens", "TTFT ms", "TPOT ms", "E2E ms"]


def runs_rows(runs: list[Run]) -> list[list[str]]:
    """The figure as a table."""
    return [
        [
            str(place),
            str(run.prompt_tokens),
            str(run.output_tokens),
            f"{run.ttft:.0f}",
            number(run.tpot),
            f"{run.e2e:.0f}",
        ]
        for place, run in enumerate(runs, 1)
    ]


def runs_summary(runs: list[Run]) -> str:
    """One sentence that says what moved between the last two runs, by measured ratio."""
    if not runs:
        return "No run yet."
    if len(runs) == 1:
        return f"One run: {runs[0].label}. Move one knob to compare."
    before, after = runs[-2], runs[-1]
    parts = [f"TTFT {_times(after.ttft, before.ttft)}"]
    if before.tpot and after.tpot:
        parts.append(f"TPOT {_times(after.tpot, before.tpot)}")
    parts.append(f"E2E {_times(after.e2e, before.e2e)}")
    return f"From ({before.label}) to ({after.label}): " + ", ".join(parts) + "."


def _times(after: float, before: float) -> str:
    return f"{after:.0f} ms ({after / before:.1f}x)" if before else f"{after:.0f} ms"

"""How long a step takes as it grows: flat while memory is the limit, rising past the knee."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmlab.viz.palette import DECODE, QUIET, layout


def step_curve(
    batches: Sequence[int],
    ms: Sequence[float],
    floor_ms: Sequence[float],
    low: Sequence[float],
    high: Sequence[float],
) -> Any:
    """Plotly figure: measured median with its spread, and the floor that the roofline gives."""
    import plotly.graph_objects as go

    figure = go.Figure(layout=layout("Time of one decode step, measured here", 320))
    figure.add_scatter(
        x=list(batches),
        y=list(ms),
        name="measured (bars: fastest to slowest)",
        mode="lines+markers",
        line={"color": DECODE},
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [h - m for h, m in zip(high, ms, strict=True)],
            "arrayminus": [m - lo for lo, m in zip(low, ms, strict=True)],
            "thickness": 1,
        },
        hovertemplate="batch %{x}: %{y:.1f} ms<extra></extra>",
    )
    figure.add_scatter(
        x=list(batches),
        y=list(floor_ms),
        name="floor: the slower of the two rates",
        mode="lines",
        line={"color": QUIET, "dash": "dash"},
        hovertemplate="floor at batch %{x}: %{y:.1f} ms<extra></extra>",
    )
    ticks = {"tickmode": "array", "tickvals": list(batches), "ticktext": [str(b) for b in batches]}
    figure.update_xaxes(type="log", title_text="requests in the step (batch size)", **ticks)
    figure.update_yaxes(title_text="ms per step", rangemode="tozero")
    return figure

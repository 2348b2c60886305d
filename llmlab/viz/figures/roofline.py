"""The roofline with measured or simulated points under it, on log axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmlab.perf.hardware import Hardware
from llmlab.perf.roofline import Utilization, attainable_flops
from llmlab.viz.palette import DECODE, PREFILL, QUIET, READY, layout

STYLE = {
    "decode": (DECODE, "circle"),
    "prefill": (PREFILL, "diamond"),
    "mixed": (READY, "square"),
}


@dataclass(frozen=True)
class Point:
    """One step, or the median of several: FLOPs per byte, and achieved FLOP/s."""

    label: str
    phase: str
    intensity: float
    flops_per_s: float

    @classmethod
    def of(cls, label: str, phase: str, achieved: Utilization) -> Point:
        """Where a step of this utilization lies."""
        return cls(label, phase, achieved.intensity, achieved.flops / achieved.seconds)


def roofline(hardware: Hardware, dtype: str, points: Sequence[Point], simulated: bool) -> Any:
    """Plotly figure. Roofline model: Williams, Waterman, Patterson, CACM 52(4), 2009."""
    import plotly.graph_objects as go

    figure = go.Figure(layout=layout("", 400))
    figure.add_scatter(mode="lines", name="roof", line={"color": QUIET, "width": 2})
    for phase, (colour, symbol) in STYLE.items():
        figure.add_scatter(
            mode="markers+lines",
            name=phase,
            marker={"color": colour, "symbol": symbol, "size": 9},
            line={"color": colour, "width": 1, "dash": "dot"},
            hovertemplate="%{text}<br>%{x:.3g} FLOP/B, %{y:.3g} FLOP/s<extra>%{fullData.name}"
            "</extra>",
        )
    log = {"type": "log", "dtick": 1, "exponentformat": "SI"}
    figure.update_xaxes(title_text="FLOPs per byte moved", **log)
    figure.update_yaxes(title_text="FLOP/s", type="log")
    update_roofline(figure, hardware, dtype, points, simulated)
    return figure


def update_roofline(
    figure: Any, hardware: Hardware, dtype: str, points: Sequence[Point], simulated: bool
) -> None:
    """Redraw in place."""
    peak, ridge = hardware.flops(dtype), hardware.ridge(dtype)
    spread = [p.intensity for p in points] + [ridge]
    low, high = min(spread) / 4, max(spread) * 8
    xs = [float(x) for x in np.geomspace(low, high, 80)] + [ridge]
    xs.sort()
    roof = [attainable_flops(x, peak, hardware.bandwidth) for x in xs]
    figure.layout.yaxis.update(_ticks(min(roof), max(roof)))
    figure.data[0].update(x=xs, y=roof, hovertemplate="roof: %{y:.3g} FLOP/s<extra></extra>")
    for trace in figure.data[1:]:
        mine = sorted((p for p in points if p.phase == trace.name), key=lambda p: p.intensity)
        trace.update(
            x=[p.intensity for p in mine],
            y=[p.flops_per_s for p in mine],
            text=[p.label for p in mine],
            visible=True if mine else "legendonly",
        )
    note = "simulated" if simulated else "measured"
    figure.layout.title.text = f"Roof of {hardware.name}, {dtype} · {note}"
    figure.layout.annotations = [
        {
            "x": float(np.log10(ridge)),
            "y": float(np.log10(peak)),
            "text": f"ridge {ridge:.3g} FLOP/B",
            "showarrow": True,
            "arrowhead": 0,
            "arrowcolor": QUIET,
            "ay": -28,
            "ax": -30,
        }
    ]


def _ticks(low: float, high: float) -> dict[str, list[Any]]:
    """Powers of ten; where there are few, 2 and 5 too. plotly has no word for 10^15."""
    steps = (1, 2, 5) if high < 100 * low else (1,)
    places = [(step, power) for power in range(6, 18) for step in steps]
    return {
        "tickvals": [step * 10.0**power for step, power in places],
        "ticktext": [
            f"{step * 10 ** (power % 3)}{'MGTP'[power // 3 - 2]}" for step, power in places
        ],
    }


def roof_words(near: str) -> str:
    """The roof that a step is near (`Utilization.near`), in a sentence."""
    return "neither roof" if near == "neither" else f"the {near} roof"

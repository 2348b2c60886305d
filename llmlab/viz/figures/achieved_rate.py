"""Achieved bandwidth of some calls beside what the machine copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmlab.viz.palette import DECODE, PREFILL, QUIET, READY, layout


def achieved_rate(bars: Sequence[tuple[str, str, float]], copy: float, title: str) -> Any:
    """Plotly figure: a group of bars for each size, one for each name; rates in GB/s.

    bars: (name, size, GB/s); copy: the measured copy rate, the dashed line.
    """
    import plotly.graph_objects as go

    names = list(dict.fromkeys(name for name, _, _ in bars))
    figure = go.Figure(layout=layout(title, 320, barmode="group", showlegend=len(names) > 1))
    sizes = list(dict.fromkeys(size for _, size, _ in bars))
    inks = (DECODE, PREFILL, READY)
    for number, name in enumerate(names):
        rates = {size: rate for n, size, rate in bars if n == name}
        figure.add_bar(
            name=name,
            x=sizes,
            y=[rates.get(size) for size in sizes],
            text=[f"{100 * rates[size] / copy:.0f} %" if size in rates else "" for size in sizes],
            textposition="outside",
            cliponaxis=False,
            marker={"color": inks[number % len(inks)]},
            hovertemplate="%{x}: %{y:.1f} GB/s<extra></extra>",
        )
    figure.add_hline(y=copy, line={"color": QUIET, "dash": "dash"})
    figure.add_annotation(
        x=1,
        y=copy,
        xref="paper",
        xanchor="right",
        yanchor="bottom",
        showarrow=False,
        yshift=2,
        text=f"100 %: a copy, {copy:.1f} GB/s",
    )
    most = max([copy, *(rate for _, _, rate in bars)])
    figure.update_yaxes(title_text="GB/s", range=[0, 1.15 * most])
    figure.update_xaxes(showgrid=False)
    return figure

"""One prompt's keys and values on their way: each layer's messages beside the prefill's time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmlab.viz.palette import DECODE, HAIRLINE, PREFILL, QUIET, layout

if TYPE_CHECKING:
    from llmlab.engine.pair.result import MovedRequest


def _origin(moved: MovedRequest) -> int:
    """Everything is drawn in ms since the prefill began; ValueError if nothing was moved."""
    if not moved.layers or moved.t_prefill_start is None:
        raise ValueError(f"request {moved.request_id} ({moved.where}) moved nothing: no figure")
    return moved.t_prefill_start


def kv_transfer(moved: MovedRequest) -> Any:
    """Plotly figure: a bar from sent to received for each message, the prefill behind them."""
    import plotly.graph_objects as go

    origin = _origin(moved)
    figure = go.Figure(layout=layout("Layer by layer (measured here)", 430, showlegend=False))
    sent = [(part.t_sent - origin) / 1e6 for part in moved.layers]
    took = [(part.t_received - part.t_sent) / 1e6 for part in moved.layers]
    figure.add_bar(
        y=[part.layer for part in moved.layers],
        x=took,
        base=sent,
        orientation="h",
        width=0.8,
        # Seen through and edged: the messages of a layer's chunks may overlap.
        marker={"color": DECODE, "opacity": 0.75, "line": {"width": 1, "color": HAIRLINE}},
        customdata=[[part.bytes, part.tokens] for part in moved.layers],
        hovertemplate="layer %{y}: %{customdata[0]:,} bytes, %{customdata[1]} tokens<br>"
        "sent at %{base:.1f} ms, %{x:.2f} ms on the way<extra></extra>",
    )
    ended = moved.t_prefill_end
    end = (ended - origin) / 1e6 if ended is not None else max(sent)
    last = max(a + b for a, b in zip(sent, took, strict=True))
    shade = {"type": "rect", "yref": "paper", "y0": 0, "y1": 1, "line": {"width": 0}}
    upright = {"type": "line", "yref": "paper", "y0": 0, "y1": 1}
    figure.update_layout(
        margin_t=68,
        xaxis_title_text="ms since the prefill began",
        yaxis={"title": {"text": "layer"}, "autorange": "reversed", "dtick": _every(moved)},
        shapes=[
            {**shade, "x0": 0, "x1": end, "fillcolor": PREFILL, "opacity": 0.14, "layer": "below"},
            {**upright, "x0": last, "x1": last, "line": {"dash": "dot", "color": QUIET}},
        ],
        annotations=[
            {
                "text": f"prefill {end:,.0f} ms · last layer there {last:,.0f} ms",
                "x": 1,
                "xref": "paper",
                "xanchor": "right",
                "y": 1.01,
                "yref": "paper",
                "yanchor": "bottom",
                "showarrow": False,
            }
        ],
    )
    return figure


def _every(moved: MovedRequest) -> int:
    return max(1, (max(part.layer for part in moved.layers) + 1) // 6)


TRANSFER_HEAD = ["what happened", "ms since the prefill began"]


def transfer_rows(moved: MovedRequest) -> list[list[str]]:
    """The figure as a table: its turning points in order of time."""
    origin = _origin(moved)
    points = [
        ("the decode worker took blocks and asked", moved.t_asked),
        ("the prefill began", moved.t_prefill_start),
        ("the first layer was sent", moved.t_first_transfer),
        ("the prefill ended", moved.t_prefill_end),
        ("the last layer was in place", moved.t_last_transfer),
        ("the first step of the decode worker began", moved.t_first_decode),
    ]
    known = sorted((t, what) for what, t in points if t is not None)
    return [[what, f"{(t - origin) / 1e6:,.1f}"] for t, what in known]

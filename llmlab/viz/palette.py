"""Colours and the common layout of every figure.

Okabe-Ito hues, those that keep a contrast of at least 3:1 on white and on a dark page alike (a
test computes it). Colour is never the only sign: every figure labels its rows or draws a glyph.
"""

from __future__ import annotations

from typing import Any

PREFILL = "#0072B2"  # blue
DECODE = "#D55E00"  # vermillion
QUEUE = "#A8578F"  # reddish purple, darkened from Okabe-Ito's #CC79A7 for white pages
READY = "#0A8F6A"  # bluish green, darkened likewise
QUIET = "#7A7A7A"  # neutral: axes, preprocessing, text on both themes
GRID = "rgba(122,122,122,0.25)"
HAIRLINE = "rgba(255,255,255,0.6)"  # between bars of one colour; plain white glares on a dark page

AXIS: dict[str, Any] = {
    "gridcolor": GRID,
    "linecolor": QUIET,
    "ticks": "outside",
    "tickcolor": GRID,
    "automargin": True,
}
SERIES = (PREFILL, DECODE, READY, QUEUE, QUIET)
TOP = {"y": 1, "yanchor": "top", "pad": {"t": 14}}  # of a title, however high the margin is
INK = "var(--jp-ui-font-color1,inherit)"  # of HTML: the page's own
FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif"


def whence(simulated: bool) -> str:
    """The end of a title: where its figures come from."""
    return " · simulated" if simulated else " · real"


def origin(simulated: bool) -> str:
    """The beginning of a sentence that tells figures: where they come from."""
    return "Simulated" if simulated else "Measured on this machine"


def layout(title: str, height: int, **more: Any) -> dict[str, Any]:
    """Layout that reads on a light and on a dark page: no background, neutral ink.

    A legend stands at the foot of the figure, in room of its own: two lines under the axis title.
    """
    foot = 0 if more.get("showlegend") is False or "legend" in more else 52
    axis = {**AXIS, "zerolinecolor": GRID}
    axes = {key: {**axis, **_axis(more.pop(key, {}))} for key in ("xaxis", "yaxis")}
    return {
        "title": {"text": title, "font": {"size": 15}, "x": 0, "xanchor": "left", **TOP},
        "height": height + (foot and 30),
        "margin": {"l": 10, "r": 16, "t": 48, "b": 44 + foot},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 13, "color": QUIET},
        "hoverlabel": {"font": {"family": FONT}},
        "legend": {"orientation": "h", "x": 0, "y": 0, "yref": "container", "yanchor": "bottom"},
        "bargap": 0.35,
        **axes,
        **more,
    }


def _axis(given: dict[str, Any]) -> dict[str, Any]:
    """An axis title in the size of the ticks, whether it is given now or set later."""
    title = given.get("title", {})
    title = {"text": title} if isinstance(title, str) else title
    return {**given, "title": {"font": {"size": 13}, **title}}

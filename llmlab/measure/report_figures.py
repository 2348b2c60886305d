"""The plots of a report as plotly JSON: data and layout, no plotly needed to make them.

A colour is the name of one of the page's variables ("c1", "wait"), so that it follows the theme.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from llmlab.measure.rates import concurrency_series, tokens_per_second_bins
from llmlab.measure.stats import percentile
from llmlab.measure.summary import Summary
from llmlab.measure.tables import show
from llmlab.trace import RequestRecord

MOST_ROWS = 120  # requests in the timeline: more cannot be told apart
CDF_POINTS = 400
LENGTH_BINS = 24
CLASS_COLOURS = ("c1", "c2", "c3", "c4", "c5")
PHASES = ("waiting", "prefill", "decode")

Figure = dict[str, Any]


def figures(summary: Summary) -> list[dict[str, Any]]:
    """The plots: title, what to see in it, and the figure (plotly data and layout)."""
    found = [
        _cdf(summary, "ttft_judged", "Time to first token", "requests", "ttft_ms"),
        _cdf(summary, "itl", "Time between tokens", "gaps", "gap_ms"),
        _throughput(summary),
        _in_flight(summary),
    ]
    if any(group.output_len.n and group.output_len.std for group in summary.classes.values()):
        found.append(_lengths(summary))
    plots = [plot for plot in found if plot is not None]
    if len(plots) % 2:  # two a row: the odd one out takes the row
        plots[-1]["wide"] = True
    timeline = _timeline(summary)
    return plots if timeline is None else [*plots, timeline]


def colour_of(summary: Summary, class_name: str) -> str:
    """The page's variable that holds the colour of a class."""
    return CLASS_COLOURS[list(summary.classes).index(class_name) % len(CLASS_COLOURS)]


def _axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title}, "rangemode": "tozero", **more}


def _cdf(
    summary: Summary, key: str, title: str, unit: str, limit_name: str
) -> dict[str, Any] | None:
    """Share of samples at or below each value, one line a class, limits dashed."""
    data: list[Figure] = []
    shapes: list[Figure] = []
    said: list[str] = []
    for name in summary.classes:
        samples = summary.samples(name, key)
        if not samples:
            continue
        shares = np.linspace(0, 100, min(CDF_POINTS, len(samples) + 1))
        values = np.percentile(samples, shares, method="inverted_cdf")
        x, y = [round(v, 4) for v in values.tolist()], [round(s, 3) for s in shares.tolist()]
        data.append(_steps(summary, name, x, y, "%{y:.0f} % within %{x:.4g} ms"))
        limit = getattr(summary.limits.get(name), limit_name, None)
        if limit is not None:
            shapes.append(_limit_line(limit, colour_of(summary, name)))
        p50, p95 = (show(percentile(samples, p), "ms") for p in (50, 95))
        said.append(f"{name}: median {p50}, p95 {p95}")
    if not data:
        return None
    furthest = max([max(d["x"]) for d in data] + [shape["x0"] for shape in shapes])
    layout = {
        "xaxis": _axis("ms", range=[0, furthest * 1.04]),
        "yaxis": _axis(f"% of {unit}", range=[0, 102]),
        "shapes": shapes,
    }
    dashed = " Dashed: the limit." if shapes else ""
    text = f"Share of {unit} that took at most this long.{dashed} {'; '.join(said)}."
    return _plot(title, text, data, layout)


def _steps(summary: Summary, class_name: str, x: list[float], y: list[float], hover: str) -> Figure:
    """A line that keeps each value until the next one."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": class_name,
        "x": x,
        "y": y,
        "line": {"shape": "hv", "width": 2, "color": colour_of(summary, class_name)},
        "hovertemplate": f"{class_name}<br>{hover}<extra></extra>",
    }


def _bars(
    summary: Summary, class_name: str, x: list[float], y: list[int], hover: str, **more: Any
) -> Figure:
    return {
        "type": "bar",
        "name": class_name,
        "x": x,
        "y": y,
        "marker": {"color": colour_of(summary, class_name)},
        "hovertemplate": f"{class_name}<br>{hover}<extra></extra>",
        **more,
    }


def _limit_line(limit: float, colour: str) -> dict[str, Any]:
    line = {"color": colour, "width": 1.5, "dash": "dash"}
    return {
        "type": "line",
        "x0": limit,
        "x1": limit,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": line,
    }


def _throughput(summary: Summary) -> dict[str, Any] | None:
    """Output tokens that arrived in each second, stacked by class."""
    if summary.window is None:
        return None
    data = []
    for name in summary.classes:
        records = [r for r in summary.trace.requests.values() if r.class_name == name]
        bins = tokens_per_second_bins(records, summary.window)
        if bins is None:
            return None
        middles = [i + 0.5 for i in range(len(bins))]
        data.append(_bars(summary, name, middles, bins, "%{y} tokens"))
    rates = summary.all.rates
    text = (
        f"Tokens that arrived in each second of the window. Mean "
        f"{show(rates.output_tok_s, 'tok/s')}, busiest second "
        f"{show(rates.peak_output_tok_s, 'tok/s')}. The last bar may be a part of a second."
    )
    layout = {"barmode": "stack", "bargap": 0.12, "xaxis": _axis("s"), "yaxis": _axis("tokens")}
    return _plot("Output tokens by second", text, data, layout)


def _in_flight(summary: Summary) -> dict[str, Any] | None:
    """How many requests were in flight, as a step line, one a class."""
    if summary.window is None:
        return None
    start, data = summary.window.start, []
    for name in summary.classes:
        records = [r for r in summary.trace.requests.values() if r.class_name == name]
        series = concurrency_series(records, summary.window)
        x = [round((t - start) / 1e9, 6) for t, _ in series]
        y: list[float] = [running for _, running in series]
        data.append(_steps(summary, name, x, y, "%{y} in flight at %{x:.2f} s"))
    group = summary.all
    text = (
        f"Requests sent and not yet over. All together: peak {group.concurrency_peak}, "
        f"mean over time {show(group.concurrency_mean)}."
    )
    whole = {"dtick": 1} if group.concurrency_peak <= 8 else {}
    layout = {"xaxis": _axis("s"), "yaxis": _axis("requests", **whole)}
    return _plot("In flight", text, data, layout)


def _timeline(summary: Summary) -> dict[str, Any] | None:
    """One row a request, grouped by class: waiting, prefill, decode."""
    if summary.window is None:
        return None
    sent = [r for r in summary.trace.requests.values() if r.t_send is not None and r.events]
    sent = sorted(sent, key=lambda r: r.t_send or 0)[:MOST_ROWS]
    order = list(summary.classes)
    sent = sorted(
        (r for r in sent if r.class_name in order), key=lambda r: order.index(r.class_name)
    )
    if not sent:
        return None
    rows = list(enumerate(sent))
    own = {name: {i: r for i, r in rows if r.class_name == name} for name in order}
    classes = {name: placed for name, placed in own.items() if placed}
    data = [
        bar
        for name, placed in classes.items()
        for bar in _phase_bars(name, colour_of(summary, name), placed, summary.window.start)
    ]
    waiting = [bar for bar in data if bar["name"] == "waiting"]
    for bar in waiting[1:]:
        bar["showlegend"] = False  # one grey for every class
    edges = [min(placed) - 0.5 for placed in classes.values()][1:]
    layout = {
        "barmode": "overlay",
        "height": max(220, min(640, 110 + 7 * len(sent))),
        "xaxis": _axis("s"),
        "yaxis": {
            "tickvals": [sum(placed) / len(placed) for placed in classes.values()],
            "ticktext": list(classes),
            "range": [len(sent) - 0.5, -0.5],
            "showgrid": False,
        },
        "shapes": [
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": y,
                "y1": y,
                "line": {"color": "rule", "width": 1},
            }
            for y in edges
        ],
    }
    of = len(summary.trace.requests)
    text = f"One row a request, from the moment it was meant to be sent: {len(sent)} of {of}."
    return _plot("Each request's time", text, data, layout, wide=True)


def _phase_bars(
    name: str, colour: str, placed: dict[int, RequestRecord], start: int
) -> list[Figure]:
    """Waiting (grey), prefill (the class's colour), decode (the same, pale) of one class.

    placed: its requests by row. start: of the window, ns.
    """
    parts: dict[str, tuple[list[float], list[float], list[int]]] = {
        phase: ([], [], []) for phase in PHASES
    }
    for row, r in placed.items():
        begin = (r.t_send if r.t_sched is None else r.t_sched) or 0
        first, last = r.events[0].t, r.events[-1].t
        # A client does not know when its request was scheduled: all is waiting until it answers.
        scheduled = first if r.t_first_scheduled is None else r.t_first_scheduled
        stamps = (begin, scheduled, first, last)
        for (base, width, at), (a, b) in zip(parts.values(), pairwise(stamps), strict=True):
            if b > a:
                base.append((a - start) / 1e9)
                width.append((b - a) / 1e9)
                at.append(row)
    return [
        {
            "type": "bar",
            "orientation": "h",
            "name": phase if phase == "waiting" else f"{name}, {phase}",
            "legendgroup": phase if phase == "waiting" else f"{name}, {phase}",
            "base": base,
            "x": width,
            "y": at,
            "width": 0.86,
            "marker": {"color": "wait" if phase == "waiting" else colour, "line": {"width": 0}},
            "opacity": 0.45 if phase == "decode" else 1,
            "hovertemplate": f"{name}, {phase}: %{{x:.3f}} s<extra></extra>",
        }
        for phase, (base, width, at) in parts.items()
        if at
    ]


def _lengths(summary: Summary) -> dict[str, Any]:
    """Histogram of output lengths of completed requests, stacked by class."""
    done = [m for m in summary.requests if m.outcome == "completed"]
    top = max(m.n for m in done if m.n is not None)
    step = max(1, -(-(top + 1) // LENGTH_BINS))
    edges = np.arange(0, top + 1 + step, step)
    data = []
    for name in summary.classes:
        lengths = [m.n for m in done if m.class_name == name and m.n is not None]
        middles = [float(edge) + step / 2 for edge in edges[:-1]]
        counts = np.histogram(lengths, edges)[0].tolist()
        spans = [f"{edge}..{edge + step - 1}" for edge in edges[:-1]]
        hover = "%{customdata} tokens: %{y} requests"
        data.append(_bars(summary, name, middles, counts, hover, customdata=spans))
    said = [
        f"{name}: median {show(group.output_len.median)}, longest {show(group.output_len.max)}"
        for name, group in summary.classes.items()
        if group.output_len.n
    ]
    layout = {
        "barmode": "stack",
        "bargap": 0.08,
        "xaxis": _axis("tokens"),
        "yaxis": _axis("requests"),
    }
    return _plot("Output lengths", f"Of completed requests. {'; '.join(said)}.", data, layout)


def _plot(
    title: str, text: str, data: list[Figure], layout: Figure, wide: bool = False
) -> dict[str, Any]:
    layout.setdefault("height", 300)
    return {"title": title, "text": text, "wide": wide, "figure": {"data": data, "layout": layout}}

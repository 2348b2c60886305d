"""The plots of a report as plotly JSON: data and layout, no plotly needed to make them.

A colour is the name of one of the page's variables ("c1", "wait"), so that it follows the theme.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from llmlab.measure.rates import concurrency_series, tokens_per_second_bins
from llmlab.measure.stats import Stat, describe
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
        _cdf(summary, "ttft", "Time to first token", "ttft_ms"),
        _cdf(summary, "itl", "Time between tokens", "gap_ms"),
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
    return CLASS_COLOURS[list(summary.classes).index(class_name) % len(CLASS_COLOURS)]


def _axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title}, "rangemode": "tozero", **more}


def _cdf(summary: Summary, key: str, title: str, limit_name: str) -> dict[str, Any] | None:
    """Share of samples at or below each value, one line a class, limits dashed.

    TTFT runs from the intended send where that is known, as the limits do.
    """
    data: list[Figure] = []
    shapes: list[Figure] = []
    said: list[str] = []
    for name in summary.classes:
        samples = _samples(summary, name, f"{key}_from_schedule") if key == "ttft" else []
        samples = samples or _samples(summary, name, key)
        if not samples:
            continue
        shares = np.linspace(0, 100, min(CDF_POINTS, len(samples) + 1))
        values = np.percentile(samples, shares, method="inverted_cdf")
        colour = colour_of(summary, name)
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": [round(float(v), 4) for v in values],
                "y": [round(float(s), 3) for s in shares],
                "line": {"shape": "hv", "width": 2, "color": colour},
                "hovertemplate": f"{name}<br>%{{y:.0f}} % within %{{x:.4g}} ms<extra></extra>",
            }
        )
        limit = getattr(summary.limits.get(name), limit_name, None)
        if limit is not None:
            shapes.append(_limit_line(limit, colour))
        stat = describe([samples], [50, 95])
        said.append(f"{name}: median {show(stat.p50, 'ms')}, p95 {show(stat.p95, 'ms')}")
    if not data:
        return None
    unit = "gaps" if key == "itl" else "requests"
    furthest = max([max(d["x"]) for d in data] + [shape["x0"] for shape in shapes])
    layout = {
        "xaxis": _axis("ms", range=[0, furthest * 1.04]),
        "yaxis": _axis(f"% of {unit}", range=[0, 102]),
        "shapes": shapes,
    }
    dashed = " Dashed: the limit." if shapes else ""
    text = f"Share of {unit} that took at most this long.{dashed} {'; '.join(said)}."
    return _plot(title, text, data, layout)


def _samples(summary: Summary, class_name: str, key: str) -> list[float]:
    samples: list[float] = []
    for m in summary.requests:
        value = getattr(m, key)
        if m.class_name == class_name and m.outcome == "completed" and value is not None:
            samples += value if isinstance(value, list) else [value]
    return samples


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
        data.append(
            {
                "type": "bar",
                "name": name,
                "x": [i + 0.5 for i in range(len(bins))],
                "y": bins,
                "marker": {"color": colour_of(summary, name)},
                "hovertemplate": f"{name}<br>%{{y}} tokens<extra></extra>",
            }
        )
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
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": [round((t - start) / 1e9, 6) for t, _ in series],
                "y": [running for _, running in series],
                "line": {"shape": "hv", "width": 2, "color": colour_of(summary, name)},
                "hovertemplate": f"{name}<br>%{{y}} in flight at %{{x:.2f}} s<extra></extra>",
            }
        )
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
    order = {name: i for i, name in enumerate(summary.classes)}
    sent = [r for r in summary.trace.requests.values() if r.t_send is not None and r.events]
    sent = sorted(sent, key=lambda r: r.t_send or 0)[:MOST_ROWS]
    sent.sort(key=lambda r: order.get(r.class_name, 0))
    if not sent:
        return None
    data = [
        bar
        for name in order
        for bar in _phase_bars(
            name, colour_of(summary, name), list(enumerate(sent)), summary.window.start
        )
    ]
    waiting = [bar for bar in data if bar["name"] == "waiting"]
    for bar in waiting[1:]:
        bar["showlegend"] = False  # one grey for every class
    groups = [[i for i, r in enumerate(sent) if r.class_name == name] for name in order]
    shown = [(name, rows) for name, rows in zip(order, groups, strict=True) if rows]
    edges = [rows[0] - 0.5 for _, rows in shown[1:]]
    layout = {
        "barmode": "overlay",
        "height": max(220, min(640, 110 + 7 * len(sent))),
        "xaxis": _axis("s"),
        "yaxis": {
            "tickvals": [sum(rows) / len(rows) for _, rows in shown],
            "ticktext": [name for name, _ in shown],
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
    name: str, colour: str, rows: list[tuple[int, RequestRecord]], start: int
) -> list[Figure]:
    """Waiting (grey), prefill (the class's colour), decode (the same, pale) of one class."""
    parts: dict[str, tuple[list[float], list[float], list[int]]] = {
        phase: ([], [], []) for phase in PHASES
    }
    for row, r in rows:
        if r.class_name != name:
            continue
        begin = (r.t_send if r.t_sched is None else r.t_sched) or 0
        first = r.t_first_scheduled or r.events[0].t
        stamps = (begin, first, r.events[0].t, r.events[-1].t)
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
        bar = {
            "type": "bar",
            "name": name,
            "x": [float(edge) + step / 2 for edge in edges[:-1]],
            "y": np.histogram(lengths, edges)[0].tolist(),
            "marker": {"color": colour_of(summary, name)},
            "customdata": [f"{edge}..{edge + step - 1}" for edge in edges[:-1]],
            "hovertemplate": f"{name}<br>%{{customdata}} tokens: %{{y}} requests<extra></extra>",
        }
        data.append(bar)
    said = [
        f"{name}: median {show(group.output_len.p50)}, longest {show(group.output_len.max)}"
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


def top_percentile(stat: Stat) -> str:
    """Name of the percentile to show first: p95, or the highest asked for."""
    names = list(stat.percentiles)
    return "p95" if "p95" in names or not names else names[-1]

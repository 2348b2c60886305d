"""A run as one HTML page: figures first, then plots, then every number. Works offline.

Plots are plain JSON drawn by the plotly.js inside the page, in the page's own colours, light or
dark. The page loads nothing and every plot's content is also in a table or a sentence.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from llmlab.measure.limits import Limits
from llmlab.measure.rates import concurrency_series, tokens_per_second_bins
from llmlab.measure.stats import Stat
from llmlab.measure.summary import Group, Summary
from llmlab.measure.tables import COUNT_ROWS, footer, latency_rows, rate_rows, show

MOST_ROWS = 120  # requests in the timeline: more cannot be told apart
CDF_POINTS = 400
# Colour names are variables of the page: class colours in order, then phases.
CLASS_COLOURS = ("c1", "c2", "c3", "c4", "c5")
PHASES = (("Queue and dispatch", "wait"), ("Prefill", "prefill"), ("Decode", "decode"))

Figure = dict[str, Any]


def html(summary: Summary, title: str | None = None) -> str:
    """The page as text. Needs jinja2, and plotly for its script."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from plotly.offline import get_plotlyjs

    here = Path(__file__).parent
    environment = Environment(
        loader=FileSystemLoader(here), autoescape=True, undefined=StrictUndefined
    )
    workload = summary.meta.get("workload")
    named = workload.get("name") if isinstance(workload, dict) else None
    plots = figures(summary)
    return environment.get_template("report.html.j2").render(
        title=title or named or "Run",
        subtitle=_subtitle(summary),
        description=workload.get("description", "") if isinstance(workload, dict) else "",
        cards=[_card(summary, group, i) for i, group in enumerate(summary.classes.values())],
        run=rate_rows(summary.all),
        plots=plots,
        plots_json=_safe_json([plot["figure"] for plot in plots]),
        count_names=[group.name for group in summary.groups],
        counts=[
            (label, [getattr(group.counts, key) for group in summary.groups])
            for key, label in COUNT_ROWS
        ],
        groups=[_table(group) for group in summary.groups],
        percentiles=list(summary.all.output_len.percentiles),
        notes=footer(summary),
        plotly_js=get_plotlyjs(),
    )


def write_html(summary: Summary, path: str | Path, title: str | None = None) -> None:
    """Write the page to a file."""
    Path(path).write_text(html(summary, title), encoding="utf-8")


def figures(summary: Summary) -> list[dict[str, Any]]:
    """The plots: title, what to see in it, and the figure (plotly data and layout)."""
    plots = [
        _cdf(summary, "ttft", "Time to first token", "ttft_ms"),
        _cdf(summary, "itl", "Time between tokens", "gap_ms"),
        _throughput(summary),
        _in_flight(summary),
        _timeline(summary),
    ]
    if any(group.output_len.n and group.output_len.std for group in summary.classes.values()):
        plots.append(_lengths(summary))
    return [plot for plot in plots if plot is not None]


def _safe_json(data: Any) -> str:
    """JSON that cannot end the script element it is put in."""
    text = json.dumps(data, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _subtitle(summary: Summary) -> str:
    meta = summary.meta
    config: dict[str, Any] = meta["config"] if isinstance(meta.get("config"), dict) else {}
    parts = [str(meta[key]) for key in ("model", "hardware", "policy") if meta.get(key)]
    parts += [
        f"{key} {config[key]}"
        for key in ("max_num_batched_tokens", "max_num_seqs")
        if key in config
    ]
    return " · ".join([*parts, "simulated" if meta.get("simulated") else "measured"])


def _top(stat: Stat) -> str:
    """Name of the percentile to show first: p95, or the highest asked for."""
    names = list(stat.percentiles)
    return "p95" if "p95" in names or not names else names[-1]


def _card(summary: Summary, group: Group, index: int) -> dict[str, Any]:
    limits = summary.limits.get(group.name, Limits())
    rows: list[dict[str, Any]] = []
    for label, key, limit in (
        ("TTFT", "ttft_from_schedule", limits.ttft_ms),
        ("Gap", "itl", limits.gap_ms),
        ("E2E", "e2e_from_schedule", limits.e2el_ms),
    ):
        stat = group[key] if group[key].n else group[key.removesuffix("_from_schedule")]
        name = _top(stat)
        value = stat.percentiles.get(name)
        held = None if limit is None or value is None else value <= limit
        said = "" if limit is None else f"limit {show(limit, 'ms')}"
        row = {"label": f"{label} {name}", "value": show(value, "ms"), "limit": said, "held": held}
        rows.append(row)
    share = group.attainment
    return {
        "name": group.name,
        "colour": CLASS_COLOURS[index % len(CLASS_COLOURS)],
        "count": f"{group.counts.completed} of {group.counts.submitted} completed",
        "rows": rows,
        "attainment": None if share is None else f"{100 * share:.0f} %",
        "share": 0 if share is None else round(100 * share, 1),
    }


def _table(group: Group) -> dict[str, Any]:
    rows = [
        (label, unit, stat.n, show(stat.mean), _cells(stat), show(stat.max))
        for label, unit, stat in latency_rows(group)
    ]
    for label, stat in (("Output length", group.output_len), ("Prompt length", group.prompt_len)):
        if stat.n:
            rows.append((label, "tokens", stat.n, show(stat.mean), _cells(stat), show(stat.max)))
    return {"name": group.name, "rows": rows, "rates": rate_rows(group)}


def _cells(stat: Stat) -> list[str]:
    thin = stat.thin_p99
    return [
        show(value) + ("*" if name == "p99" and thin and value is not None else "")
        for name, value in stat.percentiles.items()
    ]


def _colour(summary: Summary, class_name: str) -> str:
    return CLASS_COLOURS[list(summary.classes).index(class_name) % len(CLASS_COLOURS)]


def _axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title}, "rangemode": "tozero", **more}


def _cdf(summary: Summary, key: str, title: str, limit_name: str) -> dict[str, Any] | None:
    """Share of samples at or below each value, one line a class, limits dashed."""
    data, shapes, said = [], [], []
    for name, group in summary.classes.items():
        samples = _samples(summary, name, key)
        if not samples:
            continue
        shares = np.linspace(0, 100, min(CDF_POINTS, len(samples) + 1))
        values = np.percentile(samples, shares, method="inverted_cdf")
        colour = _colour(summary, name)
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
        stat = group[key]
        said.append(
            f"{name}: median {show(stat.p50, 'ms')}, {_top(stat)} "
            f"{show(stat.percentiles.get(_top(stat)), 'ms')}"
        )
    if not data:
        return None
    unit = "gaps" if key == "itl" else "requests"
    layout = {
        "xaxis": _axis("ms"),
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
                "marker": {"color": _colour(summary, name)},
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
                "line": {"shape": "hv", "width": 2, "color": _colour(summary, name)},
                "hovertemplate": f"{name}<br>%{{y}} in flight at %{{x:.2f}} s<extra></extra>",
            }
        )
    group = summary.all
    text = (
        f"Requests sent and not yet over. All together: peak {group.concurrency_peak}, "
        f"mean over time {show(group.concurrency_mean)}."
    )
    layout = {"xaxis": _axis("s"), "yaxis": _axis("requests")}
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
    start = summary.window.start
    bars: list[tuple[list[float], list[float], list[int]]] = [([], [], []) for _ in PHASES]
    for row, r in enumerate(sent):
        begin = r.t_send if r.t_sched is None else r.t_sched
        first = r.t_first_scheduled or r.events[0].t
        stamps = (begin or 0, first, r.events[0].t, r.events[-1].t)
        for (base, width, rows), (a, b) in zip(bars, pairwise(stamps), strict=True):
            if b > a:
                base.append((a - start) / 1e9)
                width.append((b - a) / 1e9)
                rows.append(row)
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "base": base,
            "x": width,
            "y": rows,
            "width": 0.8,
            "marker": {"color": colour, "line": {"width": 0}},
            "hovertemplate": f"{name}: %{{x:.3f}} s<extra></extra>",
        }
        for (name, colour), (base, width, rows) in zip(PHASES, bars, strict=True)
        if rows
    ]
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


def _lengths(summary: Summary) -> dict[str, Any]:
    """Histogram of output lengths of completed requests."""
    done = [m for m in summary.requests if m.outcome == "completed" and m.n is not None]
    data = [
        {
            "type": "histogram",
            "name": name,
            "x": [m.n for m in done if m.class_name == name],
            "marker": {"color": _colour(summary, name)},
            "opacity": 0.8,
            "hovertemplate": f"{name}<br>%{{x}} tokens: %{{y}} requests<extra></extra>",
        }
        for name in summary.classes
    ]
    layout = {"barmode": "overlay", "xaxis": _axis("tokens"), "yaxis": _axis("requests")}
    return _plot("Output lengths", "Of completed requests.", data, layout)


def _plot(
    title: str, text: str, data: list[Figure], layout: Figure, wide: bool = False
) -> dict[str, Any]:
    layout.setdefault("height", 300)
    return {"title": title, "text": text, "wide": wide, "figure": {"data": data, "layout": layout}}

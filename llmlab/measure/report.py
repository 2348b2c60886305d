"""A run as one HTML page: figures first, then plots, then every number. Works offline.

Plots are plain JSON drawn by the plotly.js inside the page, in the page's own colours, light or
dark. The page loads nothing and every plot's content is also in a table or a sentence.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llmlab.measure import noted
from llmlab.measure.limits import Limits
from llmlab.measure.report_figures import colour_of, figures
from llmlab.measure.stats import Stat, percentile, percentile_name
from llmlab.measure.summary import Group, Summary
from llmlab.measure.tables import (
    COUNT_ROWS,
    footer,
    latency_rows,
    percentile_cells,
    rate_rows,
    show,
)


def html(summary: Summary, title: str | None = None) -> str:
    """The page as text. Needs jinja2, and plotly for its script."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from plotly.offline import get_plotlyjs

    here = Path(__file__).parent
    environment = Environment(
        loader=FileSystemLoader(here), autoescape=True, undefined=StrictUndefined
    )
    workload = noted.workload(summary.trace)
    plots = figures(summary)
    return environment.get_template("report.html.j2").render(
        title=title or workload.get("name") or "Run",
        subtitle=_subtitle(summary),
        description=workload.get("description", ""),
        cards=[_card(summary, group) for group in summary.classes.values()],
        run=_tiles(summary),
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


def _safe_json(data: Any) -> str:
    """JSON that cannot end the script element it is put in."""
    text = json.dumps(data, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _subtitle(summary: Summary) -> str:
    meta, config = summary.meta, noted.config(summary.trace)
    parts = [str(meta[key]) for key in ("model", "hardware", "policy") if meta.get(key)]
    parts += [
        f"{key} {config[key]}"
        for key in ("max_num_batched_tokens", "max_num_seqs")
        if key in config
    ]
    return " · ".join([*parts, "simulated" if meta.get("simulated") else "measured"])


def _card(summary: Summary, group: Group) -> dict[str, Any]:
    """The percentiles that a class's limits are held against, the limits, and who kept them."""
    limits = summary.limits.get(group.name, Limits())
    rows: list[dict[str, Any]] = []
    for label, key, limit in (
        ("TTFT", "ttft", limits.ttft_ms),
        ("Gap", "itl", limits.gap_ms),
        ("E2E", "e2e", limits.e2el_ms),
    ):
        stat = group.as_meant(key)
        name = _top_percentile(stat)
        value = stat.percentiles.get(name)
        if label == "Gap" and limit is not None:  # it says itself for which percentile it holds
            name = percentile_name(limits.gap_percentile)
            value = percentile(summary.samples(group.name, "gaps_judged"), limits.gap_percentile)
        held = None if limit is None or value is None else value <= limit
        said = "" if limit is None else f"limit {show(limit, 'ms')}"
        row = {"label": f"{label} {name}", "value": show(value, "ms"), "limit": said, "held": held}
        rows.append(row)
    share = group.attainment
    return {
        "name": group.name,
        "colour": colour_of(summary, group.name),
        "count": f"{group.counts.completed} of {group.counts.submitted} completed",
        "rows": rows,
        "attainment": None if share is None else f"{100 * share:.0f} %",
        "share": 0 if share is None else round(100 * share, 1),
    }


def _top_percentile(stat: Stat) -> str:
    """Name of the percentile to show first: p95, or the highest asked for."""
    names = sorted(stat.percentiles, key=lambda name: float(name[1:]))
    return "p95" if "p95" in names or not names else names[-1]


def _tiles(summary: Summary) -> list[tuple[str, str]]:
    rows = [
        row for row in rate_rows(summary.all) if not row[0].startswith(("Within", "Output length"))
    ]
    share = summary.all.attainment
    if share is not None:
        rows.append(("Within every limit", f"{100 * share:.1f} %"))
    if summary.max_resident_kv_tokens is not None:
        rows.append(("Most KV resident", show(summary.max_resident_kv_tokens, "tokens")))
    return rows


def _table(group: Group) -> dict[str, Any]:
    stats = latency_rows(group)
    for label, stat in (("Output length", group.output_len), ("Prompt length", group.prompt_len)):
        if stat.n:
            stats.append((label, "tokens", stat))
    rows = [
        (label, unit, show(stat.n), show(stat.mean), percentile_cells(stat), show(stat.max))
        for label, unit, stat in stats
    ]
    return {"name": group.name, "rows": rows, "rates": rate_rows(group)}

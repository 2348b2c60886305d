"""`llmlab metrics TRACE`: every figure of a saved run, on screen or as a file of many kinds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from llmlab.cli.console import console
from llmlab.cli.failing import fail

if TYPE_CHECKING:
    from llmlab.measure.limits import Limits
    from llmlab.measure.summary import Group, Summary
    from llmlab.trace import Trace

app = typer.Typer(add_completion=False)
out = console()
err = console(stderr=True, soft_wrap=True)

EXAMPLES = (
    "Examples:  llmlab metrics run.jsonl   ·   "
    "llmlab metrics run.jsonl --goodput chat.ttft:700 --goodput chat.gap:50 --html run.html"
)
GOODPUT_HELP = "Limit in ms: [CLASS.]ttft|gap|tpot|e2el:MS. May be repeated."


@app.command(epilog=EXAMPLES)
def metrics(
    trace: Annotated[Path, typer.Argument(help="A trace (JSONL) of a run.")],
    goodput: Annotated[list[str] | None, typer.Option(help=GOODPUT_HELP)] = None,
    window: Annotated[
        tuple[float, float] | None,
        typer.Option(help="Only what was sent in [START, END) seconds from the first send."),
    ] = None,
    metric_percentiles: Annotated[
        str, typer.Option(help="Percentiles to show, with commas.")
    ] = "50,95,99",
    bootstrap: Annotated[
        int, typer.Option(min=0, max=100_000, help="Redraws for 95 % intervals; 0 = none.")
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the redraws.")] = 0,
    html: Annotated[Path | None, typer.Option(help="Write a page with plots to this file.")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV only.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown only.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
    vllm: Annotated[
        bool, typer.Option("--vllm", help="Print JSON under the keys of vllm bench serve.")
    ] = False,
) -> None:
    """Show every figure of a saved run. Limits come from its workload unless given here."""
    try:
        from llmlab.measure.metrics import summarize, vllm_keys
        from llmlab.measure.stats import parse_percentiles

        run = read_trace(trace)
        summary = summarize(
            run,
            limits=choose_limits(run, goodput or []),
            window=_window(run, window),
            percentiles=parse_percentiles(metric_percentiles),
            bootstrap=bootstrap,
            seed=seed,
        )
        if html is not None:
            from llmlab.measure.report import write_html

            write_html(summary, html)
            err.print(f"wrote {html}")
    except (ValueError, OSError) as error:
        fail(error)
    if as_json or vllm:
        data = vllm_keys(summary) if vllm else summary.to_dict()
        print(json.dumps(data, indent=1, allow_nan=False))
    elif as_csv or as_markdown:
        print(summary.to_csv() if as_csv else summary.to_markdown(), end="")
    else:
        show_summary(summary)


def read_trace(path: Path) -> Trace:
    """Read a trace; errors say what to do."""
    from llmlab.trace import Trace

    if not path.is_file():
        raise ValueError(f"{path}: no such file; record one with `llmlab trace` or `llmlab bench`")
    return Trace.read_jsonl(path)


def choose_limits(trace: Trace, goodput: list[str]) -> dict[str, Limits]:
    """The limits given on the command line, else those of the trace's own workload."""
    from llmlab.measure.limits import limits_of, parse_goodput

    if not goodput:
        return limits_of(trace)
    names = dict.fromkeys(record.class_name for record in trace.requests.values())
    return parse_goodput(goodput, list(names))


def show_summary(summary: Summary) -> None:
    """The summary as tables for a terminal of 80 columns."""
    from llmlab.measure.tables import COUNT_ROWS, footer

    counts = Table(title="Requests", title_justify="left", box=None, pad_edge=False)
    counts.add_column("")
    for group in summary.groups:
        counts.add_column(group.name, justify="right")
    for key, label in COUNT_ROWS:
        counts.add_row(label, *[f"{getattr(group.counts, key):,}" for group in summary.groups])
    out.print(counts)
    for group in summary.groups:
        out.print()
        out.print(_latencies(group))
    out.print()
    out.print(_rates(summary))
    out.print()
    for line in footer(summary):
        out.print(line, style="dim")


def _latencies(group: Group) -> Table:
    from llmlab.measure.tables import latency_rows, percentile_cells, show

    names = list(group.output_len.percentiles)
    table = Table(title=group.name, title_justify="left", box=None, pad_edge=False)
    table.add_column("")
    for name in ("n", "mean", *names, "max"):
        table.add_column(name, justify="right", no_wrap=True)
    for label, unit, stat in latency_rows(group):
        cells = [show(stat.mean), *percentile_cells(stat), show(stat.max)]
        table.add_row(f"{label}, {unit}", show(stat.n), *cells)
        if stat.ci:
            spans = [_span(stat.ci.get(name)) for name in ("mean", *names)]
            table.add_row("  95 % interval", "", *spans, "", style="dim")
    return table


def _span(pair: tuple[float, float] | None) -> str:
    from llmlab.measure.tables import show

    return "" if pair is None else f"{show(pair[0])}\n{show(pair[1])}"


def _rates(summary: Summary) -> Table:
    from llmlab.measure.tables import rate_table

    table = Table(title="Rates", title_justify="left", box=None, pad_edge=False)
    table.add_column("")
    for group in summary.groups:
        table.add_column(group.name, justify="right")
    for label, values in rate_table(summary):
        table.add_row(label, *values)
    return table


def _window(trace: Trace, window: tuple[float, float] | None) -> tuple[int, int] | None:
    if window is None:
        return None
    sends = [r.t_send for r in trace.requests.values() if r.t_send is not None]
    if not sends or not window[0] < window[1]:
        raise ValueError(f"--window {window[0]:g} {window[1]:g}: must be START < END of a run")
    start = min(sends)
    return start + round(window[0] * 1e9), start + round(window[1] * 1e9)

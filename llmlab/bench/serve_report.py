"""A measured run as JSON, and as tables that fit 80 columns."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from llmlab.measure.metrics import vllm_keys
from llmlab.measure.summary import Group
from llmlab.measure.tables import show as number

if TYPE_CHECKING:
    from llmlab.bench.serve import Run

out = Console(markup=False, highlight=False)
# vLLM's name -> (name in the summary, what a person reads).
FIGURES = {
    "ttft": ("ttft", "TTFT"),
    "tpot": ("tpot", "TPOT"),
    "itl": ("itl", "ITL"),
    "e2el": ("e2e", "E2E"),
}
BESIDE = ("ttft", "itl", "tpot", "e2e")


def result(run: Run, *, detailed: bool) -> dict[str, Any]:
    """vLLM's keys at the top, this lab's figures per class under `summary`."""
    trace = run.trace
    data: dict[str, Any] = {
        "base_url": trace.meta["base_url"],
        "model": trace.meta["model"],
        "api": trace.meta["api"],
        "workload": run.workload.to_dict(),
        "metadata": trace.meta.get("metadata", {}),
        "interrupted": run.interrupted,
        **vllm_keys(run.summary, detailed=detailed),
        "count_sources": dict(Counter(r.count_source or "none" for r in trace.requests.values())),
        "k_sources": trace.meta.get("k_sources", {}),
        "failures": failures(run),
        "summary": run.summary.to_dict(),
    }
    if run.server is not None:
        data["server"] = run.server.to_dict()
        data["transport"] = beside(run)
    if run.bill is not None:
        data["bill"] = run.bill.to_dict()
    return data


def failures(run: Run) -> dict[str, int]:
    """Reasons of the requests that did not complete, most frequent first."""
    bad = [r for r in run.trace.requests.values() if r.outcome not in ("completed", "in_flight")]
    return dict(Counter(f"{r.outcome}: {r.reason}" for r in bad).most_common())


def beside(run: Run) -> list[dict[str, Any]]:
    """The same figures from the client's stamps and from the server's own, in ms."""
    if run.server is None:
        return []
    rows = []
    for name in BESIDE:
        client, server = run.summary.all[name], run.server.all[name]
        for which in ("p50", "p99"):
            a, b = client.percentiles.get(which), server.percentiles.get(which)
            if a is not None and b is not None:
                rows.append({"figure": f"{name} {which}", "client": a, "server": b, "lag": a - b})
    return rows


def show(run: Run, metrics: list[str]) -> None:
    """Print the run for a person."""
    meta = run.trace.meta
    counts = run.summary.all.counts
    name = (run.workload.name, "bold")
    out.print(Text.assemble(name, f" on {meta['model']} at {meta['base_url']}"))
    if run.workload.scaled_from:
        out.print(f"scaled down from {run.workload.scaled_from}: milliseconds do not scale")
    if run.interrupted:
        out.print("interrupted: what was measured until then", style="yellow")
    out.print(
        f"{counts.submitted} sent: {counts.completed} completed, {counts.failed} failed, "
        f"{counts.rejected} rejected, {counts.cancelled} cancelled, "
        f"{counts.in_flight_at_end} in flight"
    )
    for reason, times in list(failures(run).items())[:5]:
        out.print(f"  {times} x {reason}")
    out.print(_latencies(run.summary.groups, metrics))
    out.print(_rates(run.summary.groups))
    if rows := beside(run):
        out.print(_beside(rows))
    if run.bill is not None:
        _show_bill(run)
    for note in run.summary.notes:
        out.print(f"- {note}")


def _latencies(groups: list[Group], metrics: list[str]) -> Table:
    table = Table(title="Latency, ms (client)", title_justify="left")
    names = list(groups[0].output_len.percentiles)
    for column in ("class", "figure"):
        table.add_column(column)
    for column in ("n", "mean", *names, "max"):
        table.add_column(column, justify="right")
    for group in groups:
        for metric in metrics:
            key, label = FIGURES[metric]
            stat = group[key]
            cells = [stat.mean, *stat.percentiles.values(), stat.max]
            table.add_row(group.name, label, str(stat.n), *(number(cell) for cell in cells))
        table.add_section()
    return table


def _rates(groups: list[Group]) -> Table:
    table = Table(title="Rates", title_justify="left")
    heads = ("class", "output tok/s", "total tok/s", "req/s", "goodput req/s", "attained")
    for i, column in enumerate(heads):
        table.add_column(column, justify="right" if i else "left")
    for group in groups:
        rates, share = group.rates, group.attainment
        cells = (rates.output_tok_s, rates.total_tok_s, rates.completed_req_s, rates.goodput_req_s)
        attained = "–" if share is None else f"{100 * share:.1f} %"
        table.add_row(group.name, *(number(cell) for cell in cells), attained)
    return table


def _beside(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="Client's stamps beside the server's, ms", title_justify="left")
    table.add_column("figure")
    for column in ("client", "server", "difference"):
        table.add_column(column, justify="right")
    for row in rows:
        cells = (row["client"], row["server"], row["lag"])
        table.add_row(row["figure"], *(number(cell) for cell in cells))
    return table


def _show_bill(run: Run) -> None:
    bill = run.bill
    assert bill is not None
    table = Table(title=f"Token charge, {bill.currency}", title_justify="left")
    table.add_column("kind")
    table.add_column("tokens", justify="right")
    table.add_column("charge", justify="right")
    table.add_row("input", f"{bill.input_tokens:,}", f"{bill.input_charge:f}")
    table.add_row("cached input", f"{bill.cached_tokens:,}", f"{bill.cached_charge:f}")
    table.add_row("output", f"{bill.output_tokens:,}", f"{bill.output_charge:f}")
    table.add_row("total", "", f"{bill.total:f}")
    out.print(table)
    if bill.unbilled:
        out.print(f"- {bill.unbilled} requests have no known count and are not in the charge.")
    out.print("- The token charge is not the whole bill, and no rate follows utilization.")

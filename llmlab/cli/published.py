"""The table of `llmlab simulate --published`."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

METRICS = (("ttft_ms", "TTFT ms"), ("tpot_ms", "TPOT ms"), ("output_rate", "tok/s"))


def show(report: dict[str, Any], out: Console) -> None:
    """Print a report of `sim.published.published_report`; fits 80 columns."""
    say = out.print
    say("Predicted by simulation, beside what was measured.")
    say("error: constants fitted on all rows of that device and engine")
    say("unseen: constants fitted without the row; ( ): does not count in the median")
    for set_id in dict.fromkeys(row["set"] for row in report["rows"]):
        _set(set_id, [row for row in report["rows"] if row["set"] == set_id], out)
    say()
    _line("measured rows", report, out)
    full = report["kv_exhaustion"]
    say(
        f"KV pool full, {full['users'][0]} to {full['users'][-1]} users: TPOT moves by "
        f"{full['tpot_spread']:.1%} (measured: flat), TTFT grows from "
        f"{full['ttft_ms'][0] / 1e3:.1f} to {full['ttft_ms'][-1] / 1e3:.1f} s (measured: "
        f"{full['ttft_ms_measured'][0] / 1e3:.1f} to {full['ttft_ms_measured'][-1] / 1e3:.1f} s)"
    )
    say()
    say("Estimates of another tool (no measurements)")
    rows = report["estimates"]["rows"]
    for set_id in dict.fromkeys(row["set"] for row in rows):
        _set(set_id, [row for row in rows if row["set"] == set_id], out)
    say()
    _line("estimates", report["estimates"], out)
    say()
    _growth(report["mixture_of_experts"], out)


def _set(set_id: str, rows: list[dict[str, Any]], out: Console) -> None:
    out.print()
    out.print(Text.assemble((set_id, "bold"), f"  {rows[0]['setting']}"))
    out.print(f"source: {rows[0]['source']}", style="dim")
    table = Table(box=None, pad_edge=False)
    table.add_column("users", justify="right")
    for _, label in METRICS:
        table.add_column(label, justify="right", no_wrap=True)
        table.add_column("error", justify="right", no_wrap=True)
        table.add_column("unseen", justify="right", no_wrap=True)
    for row in rows:
        cells = [str(row["users"])]
        for metric, _ in METRICS:
            cells += _cells(row, metric)
        table.add_row(*cells)
    out.print(table)
    for row in rows:
        for metric, reason in row["left_out_of_error"].items():
            out.print(f"  {row['users']} users, {metric}: left out, {reason}")
        if row["why"]:
            out.print(f"  {row['users']} users misses its target: {row['why']}")
    if rows[0]["assumed"]:
        out.print(f"  assumed: {rows[0]['assumed']}", style="dim")


def _cells(row: dict[str, Any], metric: str) -> list[str]:
    """Predicted, error and leave-one-out error; empty where nothing was measured."""
    if metric not in row["measured"]:
        return ["", "", ""]
    predicted = row["predicted"][metric]
    number = f"{predicted:,.1f}" if predicted < 1000 else f"{predicted:,.0f}"
    errors = [f"{row[key][metric]:+.1%}" for key in ("error", "error_leave_one_out")]
    if metric in row["left_out_of_error"]:
        errors = [f"({error})" for error in errors]
    return [number, *errors]


def _line(name: str, part: dict[str, Any], out: Console) -> None:
    words = []
    for metric, target in part["targets"].items():
        seen = part["median_abs_error"][metric]
        unseen = part["median_abs_error_leave_one_out"][metric]
        words.append(f"{metric} {seen:.1%} (unseen {unseen:.1%}, target {target:.0%})")
    head = (f"median absolute error, {name}:", "bold")
    out.print(Text.assemble(head, f" {'; '.join(words)}"))


def _growth(rows: list[dict[str, Any]], out: Console) -> None:
    table = Table(box=None, pad_edge=False, title="TPOT at 64 users / at 1", title_justify="left")
    for name in ("set", "model", "predicted", "published"):
        table.add_column(name, justify="left" if name in ("set", "model") else "right")
    for row in rows:
        predicted = "" if row["predicted"] is None else f"{row['predicted']:.1f}x"
        table.add_row(row["set"], row["model"], predicted, f"{row['published']:.1f}x")
    out.print(table)
    out.print(
        "A dense model reads the same weights for 1 and 64 users. A mixture of experts reads 8 "
        "of 128 experts a layer for 1, about 126 for 64 (uniform, independent routing), so its "
        "step grows with the batch. Real routers repeat experts: between 1 and 64 users the "
        "prediction is too high.",
    )

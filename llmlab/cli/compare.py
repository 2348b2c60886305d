"""`llmlab compare BASELINE TRIAL`: one table and a verdict, or why there can be none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from llmlab.cli.console import console
from llmlab.cli.failing import fail
from llmlab.cli.metrics import GOODPUT_HELP, choose_limits, read_trace

if TYPE_CHECKING:
    from llmlab.measure.compare import Comparison

app = typer.Typer(add_completion=False)
out = console()

EXAMPLES = (
    "Examples:  llmlab compare base.jsonl chunks.jsonl   ·   "
    "llmlab compare base.jsonl chunks.jsonl --goodput chat.ttft:700 --goodput chat.gap:50"
)


@app.command(epilog=EXAMPLES)
def compare(
    baseline: Annotated[Path, typer.Argument(help="Trace of the run to start from.")],
    trial: Annotated[Path, typer.Argument(help="Trace of the run with a change.")],
    goodput: Annotated[list[str] | None, typer.Option(help=GOODPUT_HELP)] = None,
    length_tolerance: Annotated[
        float,
        typer.Option(min=0, max=1, help="Share by which lengths may lie apart on average."),
    ] = 0.02,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown only.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Compare two runs of one workload against its limits.

    No verdict is given where lengths, arrivals or the completed requests differ: exit status 3.
    """
    try:
        from llmlab.measure.compare import compare as compare_traces

        old, new = read_trace(baseline), read_trace(trial)
        names = (baseline.stem, trial.stem)
        seen = compare_traces(
            old,
            new,
            choose_limits(old, goodput or []),
            names=names if names[0] != names[1] else ("baseline", "trial"),
            length_tolerance=length_tolerance,
        )
    except (ValueError, OSError) as error:
        fail(error)
    if as_json:
        print(json.dumps(seen.to_dict(), indent=1, allow_nan=False))
    elif as_markdown:
        print(seen.to_markdown(), end="")
    else:
        show_comparison(seen)
    if not seen.comparable:
        raise typer.Exit(3)


def show_comparison(seen: Comparison) -> None:
    """The comparison for a terminal of 80 columns."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for head in (*seen.names, "change"):
        table.add_column(head, justify="right")
    table.add_column("limit")
    for row in seen.rows():
        style = "red" if row[4].endswith("MISSED") else None
        table.add_row(*row, style=style)
    out.print(table)
    out.print()
    out.print(seen.verdict, style="bold")
    for reason in seen.reasons:
        out.print(f"- {reason}")
    if seen.comparable:
        out.print(seen.decision)
        out.print("\nNot shown by these runs:")
        for line in seen.not_shown:
            out.print(f"- {line}")

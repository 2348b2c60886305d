"""`llmlab bench NAME`: hands over to `python -m llmlab.bench NAME`."""

from __future__ import annotations

import typer

from llmlab.bench.__main__ import main as run_bench

app = typer.Typer(add_completion=False)

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command(context_settings=PASS_ON)
def bench(ctx: typer.Context) -> None:
    """Run a benchmark. Example: llmlab bench sched --json"""
    raise typer.Exit(run_bench(ctx.args))

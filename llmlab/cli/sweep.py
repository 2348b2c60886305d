"""`llmlab sweep`: a grid of configurations, in the simulator or on the engine, and the best."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmlab.cli.console import console
from llmlab.cli.failing import complain, fail
from llmlab.cli.metrics import GOODPUT_HELP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llmlab.executor import Results, Runner
    from llmlab.sweep import Grid, Setting
    from llmlab.sweep.session import Outcome
    from llmlab.viz.figures.sweep_map import SweepMap

app = typer.Typer(add_completion=False, rich_markup_mode=None)
out = console()
err = console(stderr=True, soft_wrap=True)

EXAMPLES = """\
Examples

\b
  llmlab sweep --max-num-batched-tokens 512:8192:x2 --rate 1:8:1
  llmlab sweep --hardware a100-80gb,h100-sxm --max-num-seqs 16,64,256 \\
      --best output_tok_s --html sweep.html
  llmlab sweep --mix 1:1,3:1,9:1 --rate 2:20:2 --min-attainment 0.99
  llmlab sweep --engine --model tiny --max-num-batched-tokens 32,64,128
  llmlab sweep --grid grid.yaml --out grid.jsonl --csv grid.csv
  llmlab sweep --grid grid.yaml --dask --workers 2
  llmlab sweep --grid grid.yaml --scheduler tcp://127.0.0.1:8786

Values of an axis: a list with commas, and ranges: 2:10:2 is 2, 4, 6, 8, 10;
256:2048:x2 is 256, 512, 1024, 2048. Every value meets every other.

grid.yaml holds the same by name (an axis given here goes before):

\b
  workload: chat_and_documents
  mix: 1:1,3:1
  rate: 1:8:1
  max_num_batched_tokens: [512, 1024, 2048]

A run that was killed or interrupted goes on when the same command is given again.
A Dask cluster must be one that you trust, with the same llmlab on every worker.
"""
AXIS = "A list or a range."


@app.command(epilog=EXAMPLES)
def sweep(
    max_num_batched_tokens: Annotated[
        str | None, typer.Option(help=f"Token budget of a step. {AXIS}")
    ] = None,
    max_num_seqs: Annotated[str | None, typer.Option(help=f"Most requests at once. {AXIS}")] = None,
    rate: Annotated[str | None, typer.Option(help=f"Requests/s, or inf. {AXIS}")] = None,
    users: Annotated[
        str | None, typer.Option(help=f"Closed loop instead of a rate. {AXIS}")
    ] = None,
    workload: Annotated[str | None, typer.Option(help="Shipped names or files.")] = None,
    mix: Annotated[
        str | None, typer.Option(help="Shares of the workload's classes: 1:1,3:1.")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="chunked, continuous, static.")] = None,
    model: Annotated[str | None, typer.Option(help="See llmlab simulate --list.")] = None,
    hardware: Annotated[str | None, typer.Option(help="See llmlab simulate --list.")] = None,
    tensor_parallel: Annotated[str | None, typer.Option(help="Devices a model.")] = None,
    seed: Annotated[str | None, typer.Option(help=f"Of the workload's draws. {AXIS}")] = None,
    grid_file: Annotated[
        Path | None, typer.Option("--grid", help="The axes from a YAML file.")
    ] = None,
    engine: Annotated[
        bool, typer.Option("--engine", help="Run the real engine here, not the simulator.")
    ] = False,
    num_prompts: Annotated[
        int | None, typer.Option(help="Requests of a cell, instead of the workload's.")
    ] = None,
    goodput: Annotated[list[str] | None, typer.Option(help=GOODPUT_HELP)] = None,
    weights: Annotated[str | None, typer.Option(help="Stored as; bf16 unless given.")] = None,
    kv: Annotated[str | None, typer.Option(help="The same for keys and values.")] = None,
    gpu_memory_utilization: Annotated[float, typer.Option(help="Share of memory used.")] = 0.9,
    model_file: Annotated[Path | None, typer.Option(help="Models of your own.")] = None,
    hardware_file: Annotated[Path | None, typer.Option(help="Hardware of your own.")] = None,
    best: Annotated[
        str | None, typer.Option(help="Rank by this figure; goodput_req_s where there are limits.")
    ] = None,
    min_attainment: Annotated[
        float | None, typer.Option(min=0, max=1, help="Rank only cells that keep this share.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=1000, help="How many of the best to show.")] = 10,
    workers: Annotated[
        int | None, typer.Option(help="Processes; as many as cores, 1 with --engine.")
    ] = None,
    dask: Annotated[bool, typer.Option("--dask", help="On a Dask cluster started here.")] = False,
    scheduler: Annotated[
        str | None, typer.Option(help="On the Dask cluster at this address.")
    ] = None,
    target: Annotated[Path, typer.Option("--out", help="Results, a line a cell (JSONL).")] = Path(
        "sweep.jsonl"
    ),
    as_csv: Annotated[Path | None, typer.Option("--csv", help="Also write a table.")] = None,
    html: Annotated[Path | None, typer.Option(help="Also write a page with a heat map.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Begin the file anew.")] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run failed cells again.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Run every cell of a grid of configurations and show the best.

    Nothing runs on a GPU: cells are simulated, or with --engine measured on this machine.
    Exit status 1: some cells failed (the file says why), the others are kept.
    """
    given = dict(locals())
    try:
        from llmlab.sweep.session import open_results

        grid, setting, runner = _asked(given)
        picture = _picture(given, grid, setting)  # refused now if it cannot be drawn at the end
        with open_results(
            target, grid, setting, overwrite=overwrite, retry_failed=retry_failed
        ) as results:
            _run(results, grid, setting, runner)
            outcome = _outcome(given, results, grid, setting, picture)
    except KeyboardInterrupt:
        err.print("interrupted")
        raise typer.Exit(130) from None
    except (ValueError, OSError) as error:
        fail(error)
    except RuntimeError as error:
        complain(error)
        raise typer.Exit(1) from None
    if as_json:
        simulated = {"simulated": not engine, "cells": len(grid), "out": str(target)}
        print(json.dumps({**simulated, **outcome.to_dict()}, indent=1, allow_nan=False))
    else:
        from llmlab.cli.sweep_table import show

        show(outcome, grid, setting, out)
    if outcome.failed:
        raise typer.Exit(1)


def _asked(given: dict[str, Any]) -> tuple[Grid, Setting, Runner]:
    """Grid, setting and runner from the options; ValueError says what is wrong with them."""
    from llmlab.executor import make_runner
    from llmlab.sweep import AXES, make_setting, read_grid
    from llmlab.sweep.best import check_figure
    from llmlab.sweep.cell import ENGINE_DEFAULTS, SIM_DEFAULTS
    from llmlab.sweep.grid import read_grid_file

    engine = given["engine"]
    if given["best"] is not None:
        check_figure(given["best"])
    for name in ("weights", "kv", "model_file", "hardware_file"):
        if engine and given[name] is not None:
            flag = "--" + name.replace("_", "-")
            raise ValueError(f"{flag}: the engine runs its own model here; leave it out")
    axes = {} if given["grid_file"] is None else read_grid_file(given["grid_file"])
    axes |= {name: given[name] for name in AXES if given[name] is not None}
    grid = read_grid(axes, ENGINE_DEFAULTS if engine else SIM_DEFAULTS)
    setting = make_setting(
        grid,
        goodput=tuple(given["goodput"] or ()),
        **{
            name: given[name]
            for name in (
                "engine",
                "num_prompts",
                "weights",
                "kv",
                "gpu_memory_utilization",
                "model_file",
                "hardware_file",
            )
        },
    )
    # Cells of the engine share the cores: side by side they would slow one another down.
    workers = given["workers"]
    if engine and workers is None and given["scheduler"] is None:
        workers = 1
    return grid, setting, make_runner(workers, dask=given["dask"], scheduler=given["scheduler"])


def _run(results: Results, grid: Grid, setting: Setting, runner: Runner) -> None:
    """Run what is left, with a progress bar on a terminal."""
    from llmlab.sweep.session import run_cells

    if results.repaired:
        err.print(f"{results.path}: its last line was cut off; that cell runs again")
    if results.count:
        err.print(f"{results.path}: {results.count:,} of {len(grid):,} cells are there; going on")
    if results.count == len(grid):
        return
    err.print(_plan(grid, setting, runner))
    try:
        with _bar(results, len(grid)) as tick:
            run_cells(results, grid, setting, runner, tick)
    except (KeyboardInterrupt, RuntimeError):
        err.print(
            f"{results.count:,} of {len(grid):,} cells are in {results.path}; the same command "
            "goes on from there"
        )
        raise


def _plan(grid: Grid, setting: Setting, runner: Runner) -> str:
    """What is about to run, in a sentence or two."""
    where = "on the real engine" if setting.engine else "simulated"
    text = f"{len(grid):,} cells {where}, {runner.what}"
    if setting.engine:
        alone = getattr(runner, "workers", 1) == 1 and getattr(runner, "scheduler", None) is None
        text += (
            "; one after the other, since they share the cores"
            if alone
            else "; side by side they share the cores, so each figure is slower than it would be"
        )
    return text


@contextmanager
def _bar(results: Results, total: int) -> Iterator[Any]:
    """A progress bar; what it gives is called after each cell."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("cells", total=total, completed=results.count)

        def tick(done: Any) -> None:
            failed = f", {results.failed:,} failed" if results.failed else ""
            bar.update(task, advance=1, description=f"cells{failed}")

        yield tick


def _figure(given: dict[str, Any], setting: Setting) -> str:
    """The figure that ranks."""
    named: str | None = given["best"]
    return named or ("goodput_req_s" if _limited(setting) else "output_tok_s")


def _picture(given: dict[str, Any], grid: Grid, setting: Setting) -> SweepMap | None:
    """The map that was asked for, still empty."""
    if given["html"] is None:
        return None
    from llmlab.viz.figures.sweep_map import SweepMap

    least = given["min_attainment"]
    return SweepMap(grid.axes, grid.varying, _figure(given, setting), setting.engine, least)


def _outcome(
    given: dict[str, Any],
    results: Results,
    grid: Grid,
    setting: Setting,
    picture: SweepMap | None,
) -> Outcome:
    """Read the file once, and write what was asked for beside it."""
    from llmlab.sweep.best import Best
    from llmlab.sweep.session import Outcome, write_csv

    outcome = Outcome(Best(_figure(given, setting), given["top"], given["min_attainment"]))
    if picture is not None:
        outcome.watch.append(picture.add)
    outcome.read(results)
    if given["as_csv"] is not None:
        write_csv(results, grid, given["as_csv"])
        err.print(f"wrote {given['as_csv']}")
    if picture is not None:
        picture.write(given["html"])
        err.print(f"wrote {given['html']}")
    return outcome


def _limited(setting: Setting) -> bool:
    """Whether any workload has limits, so that goodput is defined."""
    classes = [c for data in setting.workloads.values() for c in data["classes"]]
    ours = any(value for c in classes for key, value in c["limits"].items() if key.endswith("_ms"))
    return bool(setting.goodput) or ours

"""How a sweep speeds up with workers, and whether its memory stays flat.

    llmlab bench sweep                    one worker against two, both runners
    llmlab bench sweep --full run.jsonl   all 10,000 cells, resumable

A cell is a simulated trace of 200 requests, short chats and documents, and its figures. The
speed-up is taken on a slice of the 10,000, spread evenly over them, both sides in turn, on a quiet
machine; its clock runs once every worker has answered, so it holds no start-up, but the wait at
the end.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from llmlab.bench.command import at_least_one, command, deliver
from llmlab.bench.sweep_memory import Memory
from llmlab.executor import Results, Runner, code_version, cores, make_runner
from llmlab.perf.machine import cpu_name
from llmlab.sweep import Grid, Setting, cell_function, make_setting, read_grid, sources
from llmlab.sweep.cell import SIM_DEFAULTS
from llmlab.sweep.session import open_results, run_cells

# 2 x 2 x 5 x 10 x 2 x 5 x 5 = 10,000
AXES = {
    "workload": "chat_and_documents_cpu",
    "hardware": "a100-80gb,h100-sxm",
    "mix": "1:1,3:1",
    "seed": "0:4:1",
    "rate": "8:80:8",
    "policy": "chunked,continuous",
    "max_num_seqs": "16:256:x2",
    "max_num_batched_tokens": "256:4096:x2",
}
REQUESTS = 200
# The shipped workload has none; these split the grid: some cells keep them, most do not.
LIMITS = ("chat.ttft:100", "chat.gap:30", "document.ttft:400")
KINDS = ("processes", "dask")


def the_grid() -> tuple[Grid, Setting]:
    """The 10,000 cells and what they share."""
    grid = read_grid(AXES, SIM_DEFAULTS)
    return grid, make_setting(grid, num_prompts=REQUESTS, goodput=LIMITS)


def spread(grid: Grid, count: int) -> list[int]:
    """`count` cells at equal steps of a walk that visits every cell, so that all axes take part."""
    step = 3_089  # a prime that does not divide the number of cells
    return [i * step % len(grid) for i in range(count)]


@dataclass
class Run:
    """One run over the slice. Times in seconds; cells and rate count from when all answered."""

    kind: str
    workers: int
    start_s: float  # until every worker had answered once
    steady_s: float
    cells: int
    cells_per_s: float
    cell_s: float  # mean time inside the function, of those cells
    busy: float  # share of the workers' time that was spent inside the function
    answers: dict[int, Any] = field(repr=False)


def run_once(kind: str, workers: int, numbers: list[int], grid: Grid, setting: Setting) -> Run:
    """Run the slice once; RuntimeError if a cell fails, or a worker never answers."""
    runner = make_runner(workers, dask=kind == "dask")
    answers, seen, inside = {}, set(), []
    begin = time.perf_counter()
    steady = 0.0
    cells = ((i, grid[i]) for i in numbers)
    with closing(runner.run(cell_function(setting), cells)) as stream:
        for done in stream:
            now = time.perf_counter()
            if not done.ok:
                raise RuntimeError(f"cell {done.cell} failed: {done.error}")
            answers[done.cell] = done.value
            if steady:
                inside.append(done.seconds)
            seen.add(done.worker)
            if len(seen) == workers and not steady:
                steady = now
    if not inside:
        raise RuntimeError(f"too few cells for {workers} workers: give more --cells")
    took = now - steady
    return Run(
        kind,
        workers,
        start_s=steady - begin,
        steady_s=took,
        cells=len(inside),
        cells_per_s=len(inside) / took,
        cell_s=sum(inside) / len(inside),
        busy=sum(inside) / took / workers,
        answers=answers,
    )


def measure(
    cells: int, repeats: int, workers: int, kinds: tuple[str, ...], tell: Callable[[str], Any]
) -> dict[str, Any]:
    """Each kind with one worker and with `workers`, in turn, `repeats` times; medians of ratios."""
    grid, setting = the_grid()
    numbers = spread(grid, cells)
    runs: list[Run] = []
    load = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None
    for turn in range(repeats):
        for kind in kinds:
            for count in (1, workers):
                tell(f"turn {turn + 1} of {repeats}: {kind}, {count}")
                runs.append(run_once(kind, count, numbers, grid, setting))
    equal = all(run.answers == runs[0].answers for run in runs)
    found: dict[str, Any] = {"slice_cells": cells, "workers": workers, "repeats": repeats}
    for kind in kinds:
        one, many = ([r for r in runs if (r.kind, r.workers) == (kind, n)] for n in (1, workers))
        found[kind] = _speedup(one, many)
    found["answers_equal"] = equal
    found["load_1m_before"] = load  # above 0.5 or so the machine was not quiet
    found["runs"] = [{k: v for k, v in vars(run).items() if k != "answers"} for run in runs]
    return {**found, **_circumstances(grid, setting)}


def _speedup(one: list[Run], many: list[Run]) -> dict[str, Any]:
    """Runs with many workers over those with one, turn by turn."""
    pairs = list(zip(one, many, strict=True))
    ratios = [b.cells_per_s / a.cells_per_s for a, b in pairs]
    return {
        "speedup": median(ratios),
        "speedups": ratios,
        "busy": median(run.busy for run in many),
        # Above 1: the machine itself is slower with all cores at work.
        "cell_slowdown": median(b.cell_s / a.cell_s for a, b in pairs),
        "cells_per_s": median(run.cells_per_s for run in many),
    }


def _circumstances(grid: Grid, setting: Setting) -> dict[str, Any]:
    """What a reader needs to compare: grid, machine, versions, date."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in ("numpy", "distributed"):
        versions[name] = _version(name)
    return {
        "grid": {"axes": AXES, "cells": len(grid), "requests_per_cell": REQUESTS, "limits": LIMITS},
        "code": code_version(*sources(setting.engine)),
        "machine": {"processor": cpu_name(), "cores": cores(), "system": platform.system()},
        "versions": versions,
        "date": datetime.now(UTC).date().isoformat(),
    }


def _version(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None


# ------------------------------------------------------------------ all cells


class _Enough(Exception):
    """The piece's time is over."""


def full(path: Path, runner: Runner, seconds: float, tell: Callable[[str], Any]) -> dict[str, Any]:
    """Go on with the 10,000 cells for at most `seconds`; what the file holds then."""
    grid, setting = the_grid()
    stop = time.monotonic() + seconds
    with open_results(path, grid, setting) as results:
        with Memory(_memory_of(path), runner.what) as memory:

            def after(done: Any) -> None:
                memory.cells += 1
                if results.count % 100 == 0:
                    tell(f"{results.count:,} of {len(grid):,}")
                if time.monotonic() > stop:
                    raise _Enough

            with suppress(_Enough):
                run_cells(results, grid, setting, runner, after)
        return {**_read(results), **_circumstances(grid, setting)}


def _memory_of(path: Path) -> Path:
    return path.with_name(path.name + ".memory")


def _read(results: Results) -> dict[str, Any]:
    """Counts and times of the file, and the memory of each of its pieces."""
    seconds, numbers, attempts = 0.0, 0, 0
    for line in results.lines():
        seconds += line["seconds"]
        numbers += 1
        attempts += line.get("attempts", 1) - 1
    return {
        "cells_done": numbers,
        "cells_failed": results.failed,
        "cells_twice": numbers - results.count,
        "cells_tried_again": attempts,
        "cell_ms_mean": seconds / max(numbers, 1) * 1e3,
        "cell_seconds": seconds,
        "pieces": [asdict(piece) for piece in Memory.pieces(_memory_of(results.path))],
    }


def table(found: dict[str, Any]) -> str:
    """The speed-ups for people."""
    lines = [
        f"{'':<11}{'speed-up':>9}  {'lowest .. highest':<19}{'busy':>6}{'a cell slower by':>18}"
    ]
    for kind in KINDS:
        if kind in found:
            seen = found[kind]
            ends = f"{min(seen['speedups']):.2f} .. {max(seen['speedups']):.2f}"
            lines.append(
                f"{kind:<11}{seen['speedup']:>9.2f}  {ends:<19}{seen['busy']:>6.0%}"
                f"{seen['cell_slowdown'] - 1:>17.0%}"
            )
    lines.append(
        f"1 worker against {found['workers']}, {found['repeats']} turns of "
        f"{found['slice_cells']} cells; answers equal: {found['answers_equal']}; "
        f"load before: {found['load_1m_before']}"
    )
    return "\n".join(lines)


def full_table(found: dict[str, Any]) -> str:
    """The whole run for people."""
    total = found["grid"]["cells"]
    lines = [
        f"{found['cells_done']:,} of {total:,} cells, {found['cells_failed']:,} failed, "
        f"{found['cells_twice']} twice; a cell {found['cell_ms_mean']:.0f} ms",
        f"{'piece':<34}{'cells':>8}{'parent MB':>18}{'workers MB':>18}",
    ]
    for piece in found["pieces"]:
        ends = (f"{piece[k][0]:.0f} -> {piece[k][1]:.0f}" for k in ("parent_mb", "workers_mb"))
        lines.append(f"{piece['who']:<34}{piece['cells']:>8,}" + "".join(f"{e:>18}" for e in ends))
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """Print the figures; 0, or 2 for input that cannot be used."""
    parser = command("sweep", __doc__)
    add = parser.add_argument
    add("--cells", type=at_least_one, default=48, help="cells of the slice (default 48)")
    add("--repeats", type=at_least_one, default=3, help="turns (default 3)")
    add("--workers", type=at_least_one, default=cores(), help="the many (default: all cores)")
    add("--kinds", default=",".join(KINDS), help="processes, dask or both")
    add("--full", type=Path, metavar="RESULTS", help="run all cells into this file")
    add("--dask", action="store_true", help="with --full: on a local Dask cluster")
    add("--seconds", type=float, default=1e9, help="with --full: stop after so long")
    args = parser.parse_args(argv)
    kinds = tuple(args.kinds.split(","))

    def tell(text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r{text:<60}", end="", file=sys.stderr, flush=True)

    try:
        if not set(kinds) <= set(KINDS):
            raise ValueError(f"--kinds {args.kinds}: must be processes, dask or both")
        if args.workers < 2:
            raise ValueError(f"--workers {args.workers}: must be at least 2")
        if args.full:
            runner = make_runner(args.workers, dask=args.dask)
            found = full(args.full, runner, args.seconds, tell)
        else:
            found = measure(args.cells, args.repeats, args.workers, kinds, tell)
    except (ValueError, RuntimeError, OSError) as error:
        print(f"llmlab bench sweep: {error}", file=sys.stderr)
        return 2
    tell("")
    return deliver(args, found, full_table if args.full else table)

"""A sweep from its grid to its results file, going on where a killed one stopped."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmlab.executor import Done, Results, Runner, code_version
from llmlab.sweep.best import Best
from llmlab.sweep.cell import FIGURES, Setting, cell_function, sources
from llmlab.sweep.grid import Cell, Grid

MOST_REASONS = 100  # different reasons of failed cells that are kept apart


def open_results(
    path: Path, grid: Grid, setting: Setting, *, overwrite: bool = False, retry_failed: bool = False
) -> Results:
    """The results file of this grid and setting; ValueError for one of another grid or code."""
    return Results.open(
        path,
        kind="sweep",
        code=code_version(*sources(setting.engine)),
        grid={"axes": grid.to_dict(), **setting.to_dict()},
        cells=len(grid),
        overwrite=overwrite,
        retry_failed=retry_failed,
    )


def run_cells(
    results: Results,
    grid: Grid,
    setting: Setting,
    runner: Runner,
    tell: Callable[[Done], Any] = lambda done: None,
) -> None:
    """Run the cells that the file lacks and append each as it ends; `tell` after each.

    Memory does not grow with the grid, but for one byte a cell. Leaving early (an exception,
    Ctrl-C) keeps every line that was written.
    """
    todo = ((i, grid[i]) for i in range(len(grid)) if not results.done[i])
    with closing(runner.run(cell_function(setting), todo)) as cells:
        for done in cells:
            line: dict[str, Any] = {"ok": done.ok, "values": said(grid[done.cell])}
            line |= {"figures": done.value} if done.ok else {"error": done.error}
            line |= {"seconds": round(done.seconds, 6), "worker": done.worker}
            if done.attempts > 1:
                line["attempts"] = done.attempts
            results.write(done.cell, line)
            tell(done)


def said(cell: Cell) -> Cell:
    """The values of a cell that were given."""
    return {name: value for name, value in cell.items() if value is not None}


@dataclass
class Outcome:
    """What the lines of a results file say, read in one pass."""

    best: Best
    done: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    watch: list[Callable[[dict[str, Any]], Any]] = field(default_factory=list)

    @property
    def failed(self) -> int:
        return self.reasons.total()

    def read(self, results: Results) -> Outcome:
        """Go through the file once: the best cells, and why cells failed.

        ValueError for a line that no sweep has written.
        """
        for line in results.lines():
            try:
                self._take(line)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                where = f"{results.path}: cell {line['cell']}"
                raise ValueError(f"{where} is not as a sweep writes it: {error!r}") from error
            for see in self.watch:
                see(line)
        return self

    def _take(self, line: dict[str, Any]) -> None:
        self.done += 1
        if line["ok"]:
            self.best.add(line["cell"], line["values"], line["figures"])
        else:
            known = line["error"] in self.reasons or len(self.reasons) < MOST_REASONS
            self.reasons[line["error"] if known else "(further reasons)"] += 1

    def to_dict(self) -> dict[str, Any]:
        return {
            "done": self.done,
            "failed": self.failed,
            "reasons": dict(self.reasons),
            "best_by": self.best.figure,
            "min_attainment": self.best.min_attainment,
            "ranked": self.best.ranked,
            "best": [
                {"cell": number, "values": said(cell), "figures": figures}
                for number, cell, figures in self.best.cells()
            ],
        }


def write_csv(results: Results, grid: Grid, path: Path) -> None:
    """All cells in the order of the grid; a failed one has its reason and no figures.

    Only the places of the lines are held in memory, not the lines.
    """
    counts = ("submitted", "completed", "rejected", "preemptions")
    head = [*grid.axes, "error", *FIGURES, *counts, "seconds"]
    places = {}
    with results.path.open("rb") as lines:
        place = len(lines.readline())
        for raw in lines:
            places[json.loads(raw)["cell"]] = place
            place += len(raw)
        with path.open("w", encoding="utf-8", newline="") as out:
            writer = csv.DictWriter(out, ["cell", *head], restval="", extrasaction="ignore")
            writer.writeheader()
            for number in sorted(places):
                lines.seek(places[number])
                line = json.loads(lines.readline())
                row = {"cell": number, "error": line.get("error", ""), "seconds": line["seconds"]}
                writer.writerow({**line["values"], **line.get("figures", {}), **row})

"""Machine time of the labs: every solution at full size in a kernel of its own, cell by cell."""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LIMIT_S = 180.0
SLOWEST = 2
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
HEAD = ["lab", "machine time, s", "most of it"]
BEGIN = "<!-- machine time: written by `llmlab labs --time all` -->"
END = "<!-- end of machine time -->"

Progress = Callable[[str, int, int], None]  # lab, code cells that are over, of how many


@dataclass(frozen=True)
class CellTime:
    """One code cell: the heading it stands under, and its seconds."""

    under: str
    seconds: float


@dataclass(frozen=True)
class LabTime:
    """One solution from the start of its kernel to the end of its last cell, in seconds."""

    lab: str
    seconds: float
    fast: bool
    slowest: tuple[CellTime, ...]


def time_lab(
    path: Path, cell_limit_s: float = LIMIT_S, progress: Progress | None = None
) -> LabTime:
    """Run a notebook in a fresh kernel with an empty store of progress.

    A cell that raises is a RuntimeError with its message, one that takes over `cell_limit_s` too.
    """
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    notebook = nbformat.read(path, as_version=4)
    code = [i for i, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
    begun: dict[int, float] = {}
    spent: dict[int, float] = {}

    def begin(cell: Any, cell_index: int, **_: Any) -> None:
        begun[cell_index] = time.perf_counter()
        if progress is not None and cell_index in code:
            progress(path.stem, code.index(cell_index), len(code))

    def done(cell: Any, cell_index: int, **_: Any) -> None:
        spent[cell_index] = time.perf_counter() - begun[cell_index]

    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "LLMLAB_DATA_DIR": folder}
        client = NotebookClient(
            notebook,
            timeout=round(cell_limit_s),
            kernel_name="python3",
            extra_arguments=["--log-level=CRITICAL"],
            resources={"metadata": {"path": folder}},
            on_cell_start=begin,
            on_cell_executed=done,
        )
        start = time.perf_counter()
        try:
            client.execute(env=environment)
        except CellExecutionError as error:
            raise RuntimeError(f"{path.stem}: {error.ename}: {error.evalue}") from error
        except CellTimeoutError as error:
            raise RuntimeError(f"{path.stem}: a cell took over {cell_limit_s:.0f} s") from error
        except (DeadKernelError, AssertionError) as error:  # nbclient asserts as it cleans up
            raise RuntimeError(f"{path.stem}: the kernel died (killed, or no memory)") from error
        seconds = time.perf_counter() - start
    headings = _headings(notebook)
    ranked = sorted(((s, headings[i]) for i, s in spent.items() if i in code), reverse=True)
    slowest = tuple(CellTime(under, round(s, 1)) for s, under in ranked[:SLOWEST])
    return LabTime(path.stem, round(seconds, 1), bool(os.environ.get("LLMLAB_FAST")), slowest)


def _headings(notebook: Any) -> list[str]:
    """For each cell the newest heading at or before it."""
    newest, found = "", []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            newest = (HEADING.findall(cell.source) or [newest])[-1]
        found.append(newest)
    return found


def read(path: Path) -> dict[str, Any]:
    """What was kept before; empty if nothing was."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def with_times(content: dict[str, Any], times: list[LabTime]) -> dict[str, Any]:
    """`content` with these labs' times in place of their older ones, and this machine's name."""
    from llmlab.perf.machine import machine_facts

    facts = machine_facts()
    labs = dict(content.get("labs", {}))
    labs.update({t.lab: {k: v for k, v in asdict(t).items() if k != "lab"} for t in times})
    machine = {key: facts[key] for key in ("cpu", "usable_cores", "memory_bytes", "python")}
    return {"machine": machine, "labs": dict(sorted(labs.items()))}


def write(path: Path, content: dict[str, Any]) -> None:
    """Keep it as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def rows(content: dict[str, Any]) -> list[list[str]]:
    """One row a lab: its name, its seconds, and what most of them went into."""
    table = []
    for lab, entry in content["labs"].items():
        most = "; ".join(f"{c['under']} {c['seconds']:.0f} s" for c in entry["slowest"])
        table.append([lab, f"{entry['seconds']:.0f}", most])
    return table


def markdown(content: dict[str, Any]) -> str:
    """The table for a page, with the machine it was measured on."""
    machine = content["machine"]
    gb = machine["memory_bytes"] / 1e9
    lines = [
        f"Measured on {machine['usable_cores']} cores ({machine['cpu']}, {gb:.0f} GB), one lab at "
        "a time, from the start of its kernel to the end of its last cell:",
        "",
        f"| {' | '.join(HEAD)} |",
        "| --- | ---: | --- |",
        *(f"| {' | '.join(row)} |" for row in rows(content)),
    ]
    return "\n".join(lines)


def write_page(page: Path, content: dict[str, Any]) -> bool:
    """Put the table between the page's two marks; False where the page has none."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    if BEGIN not in text or END not in text:
        return False
    head, rest = text.split(BEGIN, 1)
    tail = rest.split(END, 1)[1]
    page.write_text(f"{head}{BEGIN}\n{markdown(content)}\n{END}{tail}", encoding="utf-8")
    return True

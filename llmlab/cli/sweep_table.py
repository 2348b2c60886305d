"""The end of a sweep on a terminal of 80 columns: the best cells, and why cells failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console

    from llmlab.sweep import Grid, Setting
    from llmlab.sweep.session import Outcome

# Figure -> head of its column. The one that ranks is shown too, wherever it stands.
SHOWN = {
    "ttft_p95_ms": "TTFT\np95 ms",
    "tpot_p50_ms": "TPOT\np50 ms",
    "itl_p99_ms": "ITL\np99 ms",
    "output_tok_s": "output\ntok/s",
    "goodput_req_s": "good\nreq/s",
    "attainment": "within\nlimits",
}
HEADS = {
    "max_num_batched_tokens": "max_num_\nbatched_\ntokens",
    "max_num_seqs": "max_num_\nseqs",
    "tensor_parallel": "tensor_\nparallel",
}
WIDEST_NAME = 16
WIDTH = 80
GAP = 2
FIRST_TO_GO = ("tpot_p50_ms", "output_tok_s", "itl_p99_ms", "ttft_p95_ms", "goodput_req_s")


def show(outcome: Outcome, grid: Grid, setting: Setting, out: Console) -> None:
    """Print the whole."""
    best = outcome.best
    mark = "MEASURED on the engine here" if setting.engine else "SIMULATED"
    good = f"{outcome.done - outcome.failed:,} of {len(grid):,} cells"
    held = ""
    if best.min_attainment is not None:
        held = f", of the {best.ranked:,} with at least {best.min_attainment:.0%} within limits"
    out.print(f"{mark}: {good}; the best by {best.figure}{held}", soft_wrap=True)
    same = [f"{name} {grid.axes[name][0]}" for name in grid.axes if _said_once(grid, name)]
    if same:
        out.print(f"All: {', '.join(same)}", style="dim")
    out.print()
    if best.ranked:
        out.print(_table(outcome, grid))
    else:
        out.print("No cell could be ranked.")
    if outcome.failed:
        out.print()
        out.print(_failures(outcome))


def _said_once(grid: Grid, name: str) -> bool:
    return len(grid.axes[name]) == 1 and grid.axes[name][0] is not None


def _table(outcome: Outcome, grid: Grid) -> Table:
    best = outcome.best
    cells = best.cells()
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    taken = 0
    for name in grid.varying:
        head = HEADS.get(name, name)
        number = not isinstance(grid.axes[name][0], str) or name == "rate"
        words = [*head.split("\n"), *(_value(cell.get(name)) for _, cell, _ in cells)]
        width = min(max(map(len, words)), WIDEST_NAME)
        taken += width + GAP
        side: Any = "right" if number else "left"
        table.add_column(head, justify=side, overflow="fold", min_width=width, max_width=width)
    columns = {
        name: [_figure(name, seen[name]) for _, _, seen in cells]
        for name in dict.fromkeys([*SHOWN, best.figure])
        if name == best.figure or any(seen[name] is not None for _, _, seen in cells)
    }
    shown = _that_fit(columns, WIDTH - taken, best.figure)
    for name in shown:
        style = "bold" if name == best.figure else None
        table.add_column(_head(name), justify="right", style=style, no_wrap=True)
    for i, (_, cell, _) in enumerate(cells):
        values = [Text(_value(cell.get(name))) for name in grid.varying]
        table.add_row(*values, *(columns[name][i] for name in shown))
    return table


def _head(figure: str) -> str:
    return SHOWN.get(figure) or figure.replace("_", "\n", 1).replace("_", " ")


def _that_fit(columns: dict[str, list[str]], room: int, ranks: str) -> list[str]:
    """The figures that find room beside the axes; the one that ranks always does."""
    shown = list(columns)
    for name in FIRST_TO_GO:
        widths = (max(map(len, [*_head(n).split("\n"), *columns[n]])) + GAP for n in shown)
        if sum(widths) <= room:
            break
        if name in shown and name != ranks:
            shown.remove(name)
    return shown


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    if name == "attainment":
        return f"{value:.1%}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _failures(outcome: Outcome) -> Table:
    table = Table(
        box=None, pad_edge=False, title=f"{outcome.failed:,} failed", title_justify="left"
    )
    table.add_column("cells", justify="right")
    table.add_column("reason", overflow="fold")
    for reason, count in outcome.reasons.most_common(10):
        table.add_row(f"{count:,}", Text(reason))
    return table

"""`llmlab doctor`: what this machine is, what it reaches, and what each lab can do on it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from llmlab.cli.console import console
from llmlab.cli.findings import examine

app = typer.Typer(add_completion=False)
out = console()
err = console(stderr=True)

EXAMPLES = "Examples:  llmlab doctor   ·   llmlab doctor --quick   ·   llmlab doctor --json"


@app.command(epilog=EXAMPLES)
def doctor(
    quick: Annotated[bool, typer.Option("--quick", help="Measure 3 times instead of 7.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Say what this machine is, how fast it reads and multiplies, and what each lab can do."""
    try:
        if as_json:
            found = examine(3 if quick else 7)
        else:
            with err.status("looking around") as status:
                found = examine(3 if quick else 7, lambda what: status.update(f"measuring {what}"))
    except KeyboardInterrupt:
        err.print("interrupted")
        raise typer.Exit(130) from None
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        show(found)


MARKS = {"full": "✓", "reduced": "~", "no": "✗"}
INKS = {"full": "green", "reduced": "yellow", "no": "red"}
SPEED_HEAD = ["measured here", "median", "spread", "n"]
LAB_HEAD = ["lab", "on this machine itself", "here"]
LEGEND = (
    "spread: (largest - smallest) / median. ridge: FLOP per byte from which on the matrix rate, "
    "not the memory, is the limit."
)


def show(found: dict[str, Any]) -> None:
    """Print the findings; fits 80 columns."""
    out.print(_grid(None, _facts(found)))
    out.print()
    if found["measured"]:
        out.print(_grid(SPEED_HEAD, _speeds(found["measured"]), right=SPEED_HEAD[1:]))
        out.print(LEGEND, style="dim")
        out.print()
    inks = {MARKS[state]: ink for state, ink in INKS.items()}
    labs = [
        (lab, does, Text.assemble((here[0], inks[here[0]]), here[1:]))
        for lab, does, here in _labs(found["labs"])
    ]
    out.print(_grid(LAB_HEAD, labs))
    for line in _advice(found):
        out.print(line, soft_wrap=True)


def page(found: dict[str, Any]) -> Any:
    """The findings in a notebook: tables that follow its width, or the same as text."""
    from llmlab.viz.show import Shown, table_html, table_text

    tables = [
        ("This machine", ["part", "found"], _facts(found)),
        ("What each lab can do here", LAB_HEAD, _labs(found["labs"])),
        ("How fast it is", SPEED_HEAD, _speeds(found["measured"])),
    ]
    notes = [LEGEND, *_advice(found)]
    last = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return Shown(
        None,
        lambda: "".join(table_html(*table) for table in tables) + last,
        lambda: "\n\n".join([*(table_text(*table) for table in tables), *notes]),
    )


def _advice(found: dict[str, Any]) -> list[str]:
    parts = (found[part]["advice"] for part in ("model", "calibrated"))
    return [f"→ {advice}" for advice in parts if advice]


def _grid(
    head: list[str] | None, rows: Iterable[Iterable[str | Text]], right: Sequence[str] = ()
) -> Table:
    table = Table(box=None, pad_edge=False, show_header=head is not None)
    for number, name in enumerate(head or ["", ""]):
        bold = "bold" if head is None and number == 0 else None
        side: Any = "right" if name in right else "left"
        fold: Any = "fold" if number else "ellipsis"
        table.add_column(name, style=bold, justify=side, overflow=fold, no_wrap=number == 0)
    for row in rows:
        table.add_row(*row)
    return table


def _facts(found: dict[str, Any]) -> list[list[str]]:
    machine, gpu, model = found["machine"], found["gpu"], found["model"]
    browser, software = found["browser"], found["software"]
    free, total = machine["free_memory_bytes"] / 1e9, machine["memory_bytes"] / 1e9
    return [
        ["machine", f"{machine['cpu']}, {machine['usable_cores']} of {machine['cores']} cores"],
        ["system", f"{machine['system']} {machine['architecture']}"],
        ["memory", f"{free:.1f} GB free of {total:.1f} GB"],
        ["GPU", _gpu_line(gpu)],
        ["torch", software["torch"] or "missing"],
        ["Triton", software["triton"] or "missing (no wheels for this system)"],
        ["model", model["name"] if model["found"] else f"{model['name']} is missing"],
        ["browser", browser["name"] or "none found: open the printed address yourself"],
    ]


def _gpu_line(gpu: dict[str, Any]) -> str:
    if not gpu["found"]:
        return "none that torch can use"
    line = f"{gpu['name']}, {gpu['free_memory'] / 1e9:.1f} GB free"
    if gpu["nvml"]:
        line += f", NVML says {gpu['nvml']['gpu_percent']:.0f} % busy. {gpu['nvml']['meaning']}"
    return line


def _speeds(measured: list[dict[str, Any]]) -> list[list[str]]:
    rows = []
    for found in measured:
        device, read = found["device"].upper(), found["read_bytes_per_s"]
        rate = f"{read['median'] / 1e9:.1f} GB/s"
        rows.append([f"{device} memory read", rate, *_spread(read)])
        for dtype, flops in found["matrix_flops_per_s"].items():
            ridge = found["ridge_flops_per_byte"][dtype]
            what = f"{device} matrix product, {dtype} (ridge {ridge:.1f} FLOP/B)"
            rows.append([what, f"{flops['median'] / 1e9:,.0f} GFLOP/s", *_spread(flops)])
    return rows


def _spread(rate: dict[str, Any]) -> list[str]:
    return [f"{100 * rate['spread']:.0f} %", str(rate["n"])]


def _labs(labs: list[dict[str, Any]]) -> list[list[str]]:
    return [
        [f"{lab['lab']} {lab['name']}", lab["does"], f"{MARKS[lab['state']]} {lab['here']}"]
        for lab in labs
    ]

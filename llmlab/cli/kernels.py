"""`llmlab kernels`: what the compiler makes of each Triton kernel, chip by chip, without a GPU."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from llmlab.cli.console import console
from llmlab.cli.failing import fail

app = typer.Typer(add_completion=False)

CHIPS = {80: "A100", 90: "H100, H200", 100: "B200"}


@app.command(epilog="Example: llmlab kernels --arch 90 --kernel decode")
def kernels(
    arch: Annotated[
        list[int] | None, typer.Option(help="80 (A100), 90 (H100, H200) or 100 (B200); repeatable.")
    ] = None,
    kernel: Annotated[str | None, typer.Option(help="Only this kernel, e.g. decode.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON rows only.")] = False,
) -> None:
    """Compile every kernel variant the engine launches and show what it uses of the chip.

    Nothing runs, so no GPU is needed. registers and spills are per thread (spills in bytes: must
    be 0), vector loads are 16-byte loads in the code, whole numbers as the compiler reports them.
    """
    from llmlab.kernels.aot import ARCHS

    archs = tuple(arch or ARCHS)
    if unknown := [a for a in archs if a not in ARCHS]:
        fail(f"--arch {unknown[0]}: must be one of {', '.join(map(str, ARCHS))}")
    try:
        rows = _compile(archs, kernel, quiet=as_json)
    except (RuntimeError, ImportError) as error:
        fail(f"{error}. Is triton installed? It exists for Linux on x86-64.")
    if not rows:
        fail(f"--kernel {kernel}: no such kernel; without --kernel all are shown")
    if as_json:
        print(json.dumps(rows, indent=1))
    else:
        _show(rows)


def _compile(archs: tuple[int, ...], kernel: str | None, quiet: bool) -> list[dict[str, Any]]:
    from llmlab.kernels.aot import table

    rows: list[dict[str, Any]] = []
    with console(stderr=True, quiet=quiet).status("Compiling") as status:
        for arch in archs:
            status.update(f"Compiling for sm_{arch} ({CHIPS[arch]}), about 15 seconds")
            rows += table((arch,), kernel)
    return rows


def _show(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    out = console()
    for target in dict.fromkeys(row["target"] for row in rows):
        table = Table(title=f"{target} ({CHIPS[int(target[3:])]})", title_justify="left")
        table.add_column("kernel")
        table.add_column("variant", overflow="fold")
        for name in ("regs", "spills", "shared", "16 B loads"):
            table.add_column(name, justify="right")
        table.add_column("matrix")
        for row in rows:
            if row["target"] == target:
                table.add_row(
                    row["kernel"],
                    row["variant"],
                    str(row["registers"]),
                    str(row["spills"]),
                    f"{row['shared_bytes'] / 1024:.0f} KiB",
                    str(row["vector_loads"]),
                    row["matrix_instruction"],
                )
        out.print(table)

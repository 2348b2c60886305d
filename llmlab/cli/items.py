"""`llmlab items`: what worksheets and questions there are, and whether they are sound."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Table

from llmlab.cli.console import console
from llmlab.cli.failing import fail

app = typer.Typer(add_completion=False)
out = console()
err = console(stderr=True)

EXAMPLES = (
    "Examples:  llmlab items   ·   llmlab items --check --json   ·   "
    "LLMLAB_ITEMS=my-items llmlab items --check"
)


@app.command(epilog=EXAMPLES)
def items(
    check: Annotated[bool, typer.Option("--check", help="Check all files; 1 on faults.")] = False,
    students: Annotated[
        int, typer.Option(min=1, max=100_000, help="Names whose numbers are drawn in a check.")
    ] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """List worksheets and questions, or check them and what they cover.

    An instructor's own YAML files are found in the folder that LLMLAB_ITEMS names.
    """
    if check:
        _check(students, as_json)
    else:
        _list(as_json)


def _check(students: int, as_json: bool) -> None:
    from llmlab.check.audit import audit

    with err.status("checking every item for many students"):
        found = audit(students)
    if as_json:
        print(json.dumps(found.as_json(), indent=1, ensure_ascii=False))
    elif found.problems:
        for problem in found.problems:
            err.print(f"✗ {problem}", soft_wrap=True)
    else:
        uncovered = ", ".join(found.uncovered) or "nothing"
        out.print(
            f"✓ {found.items} items, {found.questions} questions, "
            f"{found.misconceptions} misconceptions, {found.wrong_options} wrong options\n"
            f"not covered by an item or a question: {uncovered}",
        )
    raise typer.Exit(1 if found.problems else 0)


def _list(as_json: bool) -> None:
    from llmlab.check import library
    from llmlab.check.yaml_lines import ContentError

    try:
        sheets, bank = library.worksheets(), library.questions()
    except ContentError as error:
        fail(f"run llmlab items --check; first fault: {error}")
    if as_json:
        data = {
            "worksheets": {n: [item.id for item in s.items] for n, s in sheets.items()},
            "questions": {
                q.id: {"kind": q.kind, "level": q.level, "topic": q.topic} for q in bank.values()
            },
        }
        print(json.dumps(data, indent=1))
        return
    table = Table(box=None, pad_edge=False)
    for column in ("worksheet", "title", "items"):
        table.add_column(column)
    for name, sheet in sheets.items():
        table.add_row(name, sheet.title, str(len(sheet.items)))
    out.print(table)
    kinds = sorted({q.kind for q in bank.values()})
    counts = (f"{sum(q.kind == kind for q in bank.values())} {kind}" for kind in kinds)
    out.print(f"{len(bank)} questions: {', '.join(counts)}")

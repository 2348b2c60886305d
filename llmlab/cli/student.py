"""`llmlab student`: who the learner is."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from llmlab.cli.console import console
from llmlab.cli.failing import fail

app = typer.Typer(add_completion=False)
out = console()


@app.command(
    epilog='Examples:  llmlab student "Ada Lovelace"   ·   llmlab student --sheet sheet-ada.json'
)
def student(
    name: Annotated[str | None, typer.Argument(help="Your name or your id in the course.")] = None,
    sheet: Annotated[
        Path | None, typer.Option(help="The file with your numbers, from your instructor.")
    ] = None,
    forget: Annotated[bool, typer.Option("--forget", help="Use the curriculum's numbers.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Say who you are, to get numbers of your own; without arguments, show who you are."""
    from llmlab.check.student import Student, current_student, load_sheet, save_student

    try:
        if sheet is not None:
            who, data = load_sheet(sheet)
            if name is not None and Student(name).name != who.name:
                raise ValueError(f"{sheet} is for {who.name}, not for {name}")
            save_student(who, data)
        elif forget:
            save_student(Student())
        elif name is None and not as_json and not current_student().name and sys.stdin.isatty():
            save_student(Student(typer.prompt("Your name (empty: the curriculum's numbers)", "")))
        elif name is not None:
            save_student(Student(name))
        who = current_student()
    except ValueError as error:
        fail(error)
    except OSError as error:
        fail(
            f"your name cannot be saved: {error}. Set LLMLAB_DATA_DIR to a folder that can be "
            "written"
        )
    kind = "sheet" if who.sheet is not None else "practice" if who.name else "curriculum"
    if as_json:
        data = {"student": who.name, "numbers": kind, "fingerprint": who.fingerprint}
        print(json.dumps(data, ensure_ascii=False))
        return
    if not who.name:
        out.print("No name: the numbers are the curriculum's own.")
        return
    source = "from your instructor's sheet" if kind == "sheet" else "for practice"
    out.print(f"{who.name}, numbers {who.fingerprint} ({source})")
    if kind == "practice":
        out.print("In a class, load your numbers with: llmlab student --sheet FILE")

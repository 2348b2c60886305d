"""`llmlab sheet`: each student's numbers as a file, for an instructor to hand out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from llmlab.cli.console import console
from llmlab.cli.failing import fail

app = typer.Typer(add_completion=False)
out = console()


@app.command(
    epilog="Examples:  llmlab sheet --new-key course.key   ·   "
    "llmlab sheet --roster roster.csv --course-key-file course.key --out sheets"
)
def sheet(
    roster: Annotated[Path | None, typer.Option(help="CSV with a column name (and id).")] = None,
    course_key_file: Annotated[Path | None, typer.Option(help="The course's secret key.")] = None,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the sheets.")] = Path("sheets"),
    new_key: Annotated[Path | None, typer.Option(help="Make a new key in this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Write each student's own numbers. The key stays with you; a sheet does not hold it."""
    from llmlab.check import roster as class_
    from llmlab.check.sheets import numbers_of
    from llmlab.check.student import Student, make_sheet

    try:
        if new_key is not None:
            class_.new_key(new_key)
            if not as_json:
                out.print(f"new key in {new_key}; keep it to yourself")
            course_key_file = course_key_file or new_key
            if roster is None:
                return
        if roster is None or course_key_file is None:
            raise ValueError("give --roster and --course-key-file (or --new-key FILE)")
        key = class_.read_key(course_key_file)
        students = [Student(one.id, key) for one in class_.read_roster(roster)]
        folder.mkdir(parents=True, exist_ok=True)
        written = {}
        for who in students:
            path = folder / class_.sheet_name(who)
            text = json.dumps(make_sheet(who, numbers_of), ensure_ascii=False)
            path.write_text(text, encoding="utf-8")
            written[who.name] = str(path)
    except FileExistsError as error:
        fail(f"{error.filename} exists; a key is never overwritten")
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}")
    except ValueError as error:
        fail(error)
    if as_json:
        print(json.dumps(written, ensure_ascii=False, indent=1))
        return
    out.print(f"{len(written)} sheets in {folder}. Each student loads theirs with:")
    out.print("  llmlab student --sheet FILE")

"""`llmlab grade`: a class's hand-ins, every score worked out again, nothing executed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(add_completion=False)
out = Console()
err = Console(stderr=True)


@app.command(
    epilog="Example:  llmlab grade handins --roster roster.csv --course-key-file course.key "
    "--out grades"
)
def grade(
    folder: Annotated[Path, typer.Argument(help="Folder with hand-ins (.json, .ipynb).")],
    roster: Annotated[Path, typer.Option(help="CSV with a column name (and id).")],
    course_key_file: Annotated[
        Path | None, typer.Option(help="The course's key; without it, practice numbers.")
    ] = None,
    target: Annotated[Path, typer.Option("--out", help="Folder for the grades.")] = Path("grades"),
    worksheet: Annotated[
        list[str] | None, typer.Option(help="Grade only this worksheet; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Grade a folder: a row for every file, with the reason where one could not be graded.

    Writes grades.csv, items.csv, grades.json and summary.html. Your own points go to
    overrides.csv (student,item,points,comment), which grading again keeps.
    """
    from llmlab.check.gradebook import write_all

    try:
        book = _graded(folder, roster, course_key_file, target, worksheet or [])
        written = write_all(book, target)
    except ValueError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}")
    if as_json:
        print(json.dumps(book.as_json(), ensure_ascii=False))
        return
    failed = [row for row in book.rows if not row.graded]
    flagged = sum(bool(row.flags) for row in book.rows)
    out.print(
        f"{len(book.rows)} files: {len(book.rows) - len(failed)} graded, {len(failed)} not, "
        f"{flagged} flagged; {len(book.missing())} students without a file",
        highlight=False,
    )
    if failed:
        table = Table(box=None, pad_edge=False)
        table.add_column("not graded", overflow="fold")
        table.add_column("reason", overflow="fold")
        for row in failed[:30]:
            table.add_row(_plain(row.file), _plain(row.reason))
        out.print(table)
    out.print("wrote " + ", ".join(str(p) for p in written), soft_wrap=True, highlight=False)


def _graded(
    folder: Path, roster: Path, key_file: Path | None, target: Path, only: list[str]
) -> Any:
    from rich.progress import Progress

    from llmlab.check.grade import Grader, files_in, grade_folder
    from llmlab.check.gradebook import Gradebook, read_overrides
    from llmlab.check.roster import read_key, read_roster
    from llmlab.check.student import PRACTICE_KEY

    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder")
    key = read_key(key_file) if key_file else PRACTICE_KEY
    grader = Grader(read_roster(roster), key, only)
    target.mkdir(parents=True, exist_ok=True)
    overrides = read_overrides(target / "overrides.csv", grader)
    with Progress(console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("grading", total=len(files_in(folder, target.resolve())))
        rows = grade_folder(grader, folder, target.resolve(), lambda: bar.advance(task))
    return Gradebook(grader, rows, overrides)


def _plain(text: str) -> Any:
    from rich.text import Text

    return Text("".join(c if c.isprintable() else "?" for c in text))


def _fail(message: str) -> NoReturn:
    err.print(f"[red]error:[/red] {message}", soft_wrap=True, highlight=False)
    raise typer.Exit(2)

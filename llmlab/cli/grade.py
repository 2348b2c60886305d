"""`llmlab grade`: a class's hand-ins, every score worked out again, nothing executed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from llmlab.cli.console import console
from llmlab.cli.failing import fail

if TYPE_CHECKING:
    from llmlab.check.gradebook import Gradebook

app = typer.Typer(add_completion=False)
out = console()
err = console(stderr=True)
SMALL_CLASS = 64  # files
SHOWN = 30  # files that were not graded, on the terminal


@app.command(
    epilog="Examples:  llmlab grade handins --roster roster.csv --course-key-file course.key "
    "--out grades   ·   llmlab grade handins --roster roster.csv --workers 8"
)
def grade(
    folder: Annotated[Path, typer.Argument(help="Folder with hand-ins (.json, .ipynb).")],
    roster: Annotated[Path, typer.Option(help="CSV with a column name (and id).")],
    course_key_file: Annotated[
        Path | None, typer.Option(help="The course's key; without it, practice numbers.")
    ] = None,
    target: Annotated[Path, typer.Option("--out", help="Folder for the grades.")] = Path("grades"),
    worksheet: Annotated[
        list[str] | None,
        typer.Option(help="Grade only this worksheet, no bank questions; may be repeated."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Processes; as many as cores for a large class. 0 = in this one."),
    ] = None,
    dask: Annotated[bool, typer.Option("--dask", help="On a Dask cluster started here.")] = False,
    scheduler: Annotated[
        str | None,
        typer.Option(
            help="On the Dask cluster at this address. It gets the course key, so it must be "
            "yours, and its workers must see the folder under the same path."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Grade a folder: a row for every file, with the reason where one could not be graded.

    Writes grades.csv, items.csv, grades.json and summary.html. Your own points go to
    overrides.csv (student,item,points,comment), which grading again keeps. A run that was
    killed goes on where it stopped.
    """
    from llmlab.check.gradebook import write_all
    from llmlab.cli.grade_run import forget

    how = {"workers": workers, "dask": dask, "scheduler": scheduler}
    try:
        book = _graded(folder, roster, course_key_file, target, worksheet or [], how)
        written = write_all(book, target)
        forget(target)
    except KeyboardInterrupt:
        err.print("interrupted; the same command goes on")
        raise typer.Exit(130) from None
    except (ValueError, RuntimeError) as error:
        fail(error)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}")
    if as_json:
        print(json.dumps(book.as_json(), ensure_ascii=False))
    else:
        _show(book, written)


def _show(book: Gradebook, written: list[Path]) -> None:
    failed = [row for row in book.rows if not row.graded]
    flagged = sum(bool(row.flags) for row in book.rows)
    out.print(
        f"{len(book.rows)} files: {len(book.rows) - len(failed)} graded, {len(failed)} not, "
        f"{flagged} flagged; {len(book.missing())} students without a file",
    )
    if failed:
        table = Table(box=None, pad_edge=False)
        table.add_column("not graded", overflow="fold")
        table.add_column("reason", overflow="fold")
        for row in failed[:SHOWN]:
            table.add_row(_printable(row.file), _printable(row.reason))
        out.print(table)
        if len(failed) > SHOWN:
            out.print(f"and {len(failed) - SHOWN} more, in grades.csv")
    out.print("wrote " + ", ".join(str(p) for p in written), soft_wrap=True)


def _graded(
    folder: Path,
    roster: Path,
    key_file: Path | None,
    target: Path,
    only: list[str],
    how: dict[str, Any],
) -> Gradebook:
    """Grade the folder, under a progress bar on a terminal. how: arguments of `make_runner`."""
    from rich.progress import Progress

    from llmlab.check.grade import Course, files_in, grader_of
    from llmlab.check.gradebook import Gradebook, read_overrides
    from llmlab.check.roster import read_key, read_roster
    from llmlab.check.student import PRACTICE_KEY
    from llmlab.cli.grade_run import grade_rows
    from llmlab.executor import cores, make_runner

    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder")
    key = read_key(key_file) if key_file else PRACTICE_KEY
    course = Course(tuple(read_roster(roster)), key, tuple(only))
    grader = grader_of(course)
    target.mkdir(parents=True, exist_ok=True)
    overrides = read_overrides(target / "overrides.csv", grader)
    count = len(files_in(folder, target.resolve()))
    if not any((how["dask"], how["scheduler"], how["workers"] is not None)):
        # A process takes a second to start: a small class is graded before it is there.
        how = {**how, "workers": cores() if count >= SMALL_CLASS else 0}
    runner = make_runner(**how)
    with Progress(console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("grading", total=count)
        rows = grade_rows(
            grader,
            course,
            folder,
            target.resolve(),
            runner,
            lambda done: bar.update(task, completed=done),
        )
    return Gradebook(grader, rows, overrides)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)

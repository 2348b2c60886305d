"""`llmlab report`: the learner's hand-in, and their progress in and out as JSONL."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from llmlab.cli.console import console
from llmlab.cli.failing import complain, fail

app = typer.Typer(add_completion=False)
out = console()
err = console(stderr=True)


@app.command(
    epilog="Examples:  llmlab report   ·   llmlab report --out mine   ·   "
    "llmlab report --export all.jsonl   ·   llmlab report --import all.jsonl"
)
def report(
    folder: Annotated[Path, typer.Option("--out", help="Folder for the two files.")] = Path("."),
    export: Annotated[Path | None, typer.Option(help="Write all attempts as JSONL.")] = None,
    import_: Annotated[
        Path | None, typer.Option("--import", help="Add attempts from a JSONL file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Write your hand-in: one JSON file to hand in and an HTML file to read."""
    from llmlab.check.store import default_store

    warnings.simplefilter("ignore")  # what cannot be saved is told below, as a sentence
    store = default_store()
    try:
        if store.unread:
            raise ValueError(f"{store.trouble} Nothing was written: your last hand-in is as it was")
        if store.trouble:
            complain(store.trouble, "warning:", "yellow")
        if import_ is not None:
            added = store.import_jsonl(import_)
            _say(as_json, {"added": added}, f"{added} events added from {import_}")
        elif export is not None:
            count = store.export_jsonl(export)
            _say(as_json, {"events": count, "file": str(export)}, f"{count} events in {export}")
        else:
            _hand_in(store, folder, as_json)
    except ValueError as error:
        fail(error)
    except OSError as error:
        if import_ is not None:
            fail(f"cannot read {import_}: {error.strerror}")
        where, option = (folder, "--out") if export is None else (export, "--export")
        fail(f"cannot write {error.filename or where}: {error.strerror}; choose another {option}")


def _hand_in(store: Any, folder: Path, as_json: bool) -> None:
    from llmlab.check.handin import build
    from llmlab.check.handin_page import handin_html
    from llmlab.check.replace import replace_text
    from llmlab.check.student import current_student, plain_name

    student = current_student()
    handin = build(store, student)
    base = f"handin-{plain_name(student.name)}-{student.fingerprint.strip('-') or 'own'}"
    folder.mkdir(parents=True, exist_ok=True)
    target, page = folder / f"{base}.json", folder / f"{base}.html"
    replace_text(target, json.dumps(handin, ensure_ascii=False))
    replace_text(page, handin_html(store, handin))
    attempts = sum(event["kind"] == "attempt" for event in handin["events"])
    data = {"file": str(target), "page": str(page), "student": student.name, "attempts": attempts}
    _say(as_json, data, f"{attempts} attempts. Hand in {target}; read {page}")
    if not student.name and not as_json:
        err.print("No name is in it yet. Run: llmlab student NAME")


def _say(as_json: bool, data: dict[str, Any], text: str) -> None:
    if as_json:
        print(json.dumps(data, ensure_ascii=False))
    else:
        out.print(text, soft_wrap=True)

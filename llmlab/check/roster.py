"""A class: the roster's CSV and the course key.

The roster has a column `name`, and `id` where names are not unique or not what students type;
other columns are ignored. Commas, semicolons or tabs separate, quotes and UTF-8 are understood.
"""

from __future__ import annotations

import csv
import io
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from llmlab.check.student import Student, clean_name

MAX_BYTES = 5_000_000
MIN_KEY = 16


@dataclass(frozen=True)
class Enrolled:
    """One student of the roster; `id` is what numbers are drawn by."""

    id: str
    name: str


def read_roster(path: Path) -> list[Enrolled]:
    """The students of a roster; ValueError names the line that is wrong."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"{path}: larger than {MAX_BYTES:,} bytes")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not UTF-8; save the roster as CSV UTF-8") from None
    head = text.split("\n", 1)[0]
    mark = max(",;\t", key=head.count)
    try:
        rows = list(csv.reader(io.StringIO(text), delimiter=mark, strict=True))
    except csv.Error as error:
        raise ValueError(f"{path}: not CSV ({error})") from None
    columns = [cell.strip().lower() for cell in rows[0]] if rows else []
    if "name" not in columns:
        raise ValueError(f"{path}:1: a column `name` is missing (there are: {', '.join(columns)})")
    return _students(path, columns, rows[1:])


def _students(path: Path, columns: list[str], rows: list[list[str]]) -> list[Enrolled]:
    found: dict[str, int] = {}
    students = []
    at_name = columns.index("name")
    at_id = columns.index("id") if "id" in columns else at_name
    for number, row in enumerate(rows, 2):
        if not any(cell.strip() for cell in row):
            continue
        if len(row) <= max(at_name, at_id):
            raise ValueError(f"{path}: row {number} has {len(row)} of {len(columns)} columns")
        try:
            name, own = clean_name(row[at_name]), clean_name(row[at_id])
        except ValueError as error:
            raise ValueError(f"{path}: row {number}: {error}") from None
        if not name or not own:
            raise ValueError(f"{path}: row {number}: {'name' if not name else 'id'} is empty")
        if own in found:
            what = "id" if at_id != at_name else "name"
            fix = "each needs its own" if what == "id" else "add a column `id`"
            raise ValueError(
                f"{path}: rows {found[own]} and {number} have the same {what} {own!r}; {fix}"
            )
        found[own] = number
        students.append(Enrolled(own, name))
    if not students:
        raise ValueError(f"{path}: no students in it")
    return students


def read_key(path: Path) -> bytes:
    """The course key; ValueError when it is missing or too short."""
    try:
        key = path.read_bytes()[:4096].strip()
    except OSError as error:
        raise ValueError(
            f"{path}: cannot be read ({error.strerror}); `llmlab sheet --new-key {path}` makes one"
        ) from None
    if len(key) < MIN_KEY:
        raise ValueError(f"{path}: a course key has at least {MIN_KEY} characters")
    return key


def new_key(path: Path) -> None:
    """Write a new random key that only its owner may read; never over an old one."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as out:
        out.write(secrets.token_hex(32) + "\n")


def sheet_name(student: Student) -> str:
    """A file name for a student's sheet, whatever is in the name."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", student.name).strip("-").lower()[:40]
    return f"sheet-{plain or 'student'}-{student.fingerprint}.json"

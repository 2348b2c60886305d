"""A class: the roster's CSV and the course key.

The roster has a column `name`, and `id` where names are not unique or not what students type;
other columns are ignored.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from llmlab.check.csv_file import read_csv
from llmlab.check.student import Student, clean_name, plain_name

MIN_KEY = 16


@dataclass(frozen=True)
class Enrolled:
    """One student of the roster; `id` is what numbers are drawn by."""

    id: str
    name: str


def read_roster(path: Path) -> list[Enrolled]:
    """The students of a roster; ValueError names the line that is wrong."""
    columns, rows = read_csv(path, "name")
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
    return f"sheet-{plain_name(student.name)}-{student.fingerprint}.json"

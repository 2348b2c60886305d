"""Who the student is, and which numbers are theirs.

A name gives numbers of one's own: HMAC-SHA256(key, student|set|parameter|version) chooses from
curated lists, by a sampler of our own (the language's `hash` and `random` may change). In a
class the key stays with the instructor, who hands out each student's numbers as a sheet; alone,
a public practice key is used. Without a name the numbers are the curriculum's own.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmlab.check.replace import replace_text

PRACTICE_KEY = b"llmlab practice numbers"
VERSION = 1
SHEET_KIND = "llmlab-sheet"
MAX_NAME = 120


@dataclass(frozen=True)
class Student:
    """A name ("" = the curriculum's own numbers), a key, or the numbers of a sheet."""

    name: str = ""
    key: bytes = PRACTICE_KEY
    sheet: dict[str, dict[str, Any]] | None = field(default=None, hash=False, compare=False)
    sheet_fingerprint: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", clean_name(self.name))

    @property
    def fingerprint(self) -> str:
        """Six characters that tell one set of numbers from another, safe to show."""
        if not self.name:
            return "------"
        if self.sheet is not None:
            return self.sheet_fingerprint
        return _digest(self.key, self.name, "fingerprint", "", 0).hex()[:6]

    def __repr__(self) -> str:
        return f"Student({self.name!r}, numbers {self.fingerprint})"


def clean_name(name: str) -> str:
    """One spelling for a name: composed Unicode, single spaces; ValueError when it is no name."""
    text = " ".join(unicodedata.normalize("NFC", str(name)).split())
    if len(text) > MAX_NAME or any(unicodedata.category(c) in ("Cc", "Cs") for c in text):
        raise ValueError(f"student name: must be one line of at most {MAX_NAME} characters")
    return text


def plain_name(name: str) -> str:
    """A name as a part of a file's name: small letters, digits and hyphens, never empty."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()[:40] or "student"


CURRICULUM = Student()


def _digest(key: bytes, student: str, group: str, name: str, turn: int) -> bytes:
    message = "|".join([student.replace("|", "||"), group, name, str(VERSION), str(turn)])
    return hmac.new(key, message.encode(), hashlib.sha256).digest()


def choose(student: Student, group: str, name: str, options: Sequence[Any], turn: int) -> Any:
    """One of `options`, fixed by the key, the student, the names and the turn.

    256 bits modulo the length: the bias is below 2^-240, so no rejection is needed.
    """
    number = int.from_bytes(_digest(student.key, student.name, group, name, turn), "big")
    return options[number % len(options)]


def data_folder() -> Path:
    """Where progress and the student's name are kept; LLMLAB_DATA_DIR overrides it."""
    chosen = os.environ.get("LLMLAB_DATA_DIR")
    if chosen:
        return Path(chosen)
    from platformdirs import user_data_dir

    return Path(user_data_dir("llmlab"))


def _student_file() -> Path:
    return data_folder() / "student.json"


def current_student() -> Student:
    """The student who was named (`llmlab student`), else JUPYTERHUB_USER, else nobody."""
    hub = os.environ.get("JUPYTERHUB_USER", "")
    try:
        saved = json.loads(_student_file().read_text(encoding="utf-8"))
        if isinstance(saved, dict) and saved.get("kind") == SHEET_KIND:
            return from_sheet(saved)
        return Student(str(saved["name"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    try:
        return Student(hub)
    except ValueError:
        return CURRICULUM


def save_student(student: Student, sheet: dict[str, Any] | None = None) -> Path:
    """Remember who the student is (and the sheet, if there is one); the file is replaced whole."""
    path = _student_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    content = sheet if sheet is not None else {"kind": "llmlab-student", "name": student.name}
    replace_text(path, json.dumps(content, ensure_ascii=False))
    return path


def make_sheet(student: Student, numbers: Callable[[Student], dict[str, Any]]) -> dict[str, Any]:
    """A student's sheet: the name, the numbers and their fingerprint; no key inside."""
    return {
        "kind": SHEET_KIND,
        "version": VERSION,
        "name": student.name,
        "fingerprint": student.fingerprint,
        "numbers": numbers(student),
    }


def from_sheet(data: Any) -> Student:
    """The student of a sheet; ValueError says what is wrong with it."""
    if not isinstance(data, dict) or data.get("kind") != SHEET_KIND:
        raise ValueError("this is not a sheet of llmlab (its field kind differs)")
    if data.get("version") != VERSION:
        raise ValueError(f"sheet version {data.get('version')!r}: this lab reads {VERSION}")
    name, numbers, mark = data.get("name"), data.get("numbers"), data.get("fingerprint")
    if not isinstance(name, str) or not name.strip():
        raise ValueError("sheet field name: must be the student's name")
    if not isinstance(mark, str) or not re.fullmatch(r"[0-9a-f]{6}", mark):
        raise ValueError("sheet field fingerprint: must be six characters 0-9 a-f")
    if not isinstance(numbers, dict) or not all(isinstance(v, dict) for v in numbers.values()):
        raise ValueError("sheet field numbers: must hold the numbers of each worksheet")
    for group in numbers.values():
        for key, value in group.items():
            fits = isinstance(value, str) or (type(value) in (int, float) and math.isfinite(value))
            if not fits:
                raise ValueError(f"sheet field numbers.{key}: must be a number or a word")
    return Student(name, sheet=numbers, sheet_fingerprint=mark)


def load_sheet(path: Path) -> tuple[Student, dict[str, Any]]:
    """Read a sheet from a file; ValueError says what is wrong."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be read as a sheet ({error})") from None
    return from_sheet(data), data

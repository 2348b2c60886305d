"""CSV as an instructor's spreadsheet writes it, and as it may be opened in one."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MAX_BYTES = 5_000_000
_RISKY = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def read_csv(path: Path, *needed: str) -> tuple[list[str], list[list[str]]]:
    """Names of the columns in small letters, and the rows below them, empty ones included.

    Commas, semicolons or tabs separate, quotes and UTF-8 are understood. ValueError if the file
    cannot be read, is no CSV or lacks one of the columns `needed`.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"{path}: larger than {MAX_BYTES:,} bytes")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not UTF-8; save it as CSV UTF-8") from None
    head = text.split("\n", 1)[0]
    mark = max(",;\t", key=head.count)
    try:
        rows = list(csv.reader(io.StringIO(text), delimiter=mark, strict=True))
    except csv.Error as error:
        raise ValueError(f"{path}: not CSV ({error})") from None
    columns = [cell.strip().lower() for cell in rows[0]] if rows else []
    for name in needed:
        if name not in columns:
            there = ", ".join(columns)
            raise ValueError(f"{path}:1: a column `{name}` is missing (there are: {there})")
    return columns, rows[1:]


def write_csv(path: Path, head: list[str], rows: Iterable[list[Any]]) -> None:
    """A CSV file in UTF-8 with a mark, so that spreadsheets read names rightly."""
    with path.open("w", encoding="utf-8-sig", newline="") as out:
        writer = csv.writer(out)
        writer.writerow([safe_cell(cell) for cell in head])
        for row in rows:
            writer.writerow([safe_cell(cell) for cell in row])


def safe_cell(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula; numbers stay numbers."""
    if not isinstance(value, str):
        return value
    text = value.replace("\x00", "")
    return f"'{text}" if text.lstrip(" ").startswith(_RISKY) else text

"""Events out of a progress file that cannot be written: a full disk, a read-only one.

SQLite's write-ahead log wants to write even to read. So: read-only, else a copy where there is
room, else the file as it stands, without what is only in the log.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

Row = tuple[Any, ...]
QUERY = "SELECT uid, time, kind, item, student, data FROM events ORDER BY seq"


def read_rows(path: Path) -> list[Row] | None:
    """The rows of all events; None if there is a file and it cannot be read at all."""
    if not path.is_file():
        return []
    for read in (_read_only, _from_copy, _as_it_stands):
        with contextlib.suppress(sqlite3.Error, OSError):
            return read(path)
    return None


def _rows(address: str) -> list[Row]:
    db = sqlite3.connect(address, uri=True)
    try:
        return db.execute(QUERY).fetchall()
    finally:
        db.close()


def _read_only(path: Path) -> list[Row]:
    return _rows(f"{path.resolve().as_uri()}?mode=ro")


def _from_copy(path: Path) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="llmlab-") as folder:
        copy = Path(folder) / path.name
        shutil.copyfile(path, copy)
        log = path.with_name(f"{path.name}-wal")
        if log.is_file():
            shutil.copyfile(log, copy.with_name(log.name))
        return _rows(copy.as_uri())


def _as_it_stands(path: Path) -> list[Row]:
    return _rows(f"{path.resolve().as_uri()}?immutable=1")

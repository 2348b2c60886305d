"""Everything a learner did, append-only, in one SQLite file that survives a killed kernel.

An event is a row: uid, time (UTC), kind ("attempt", "hint", ...), item, student, and a JSON
object. Rows are only added. Write-ahead logging lets several kernels write at once; an event is
on the disk before its check returns. A disk that refuses leaves events in memory, with a warning.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import uuid
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from llmlab.check.rescue import read_rows
from llmlab.check.result import Result
from llmlab.check.student import Student, data_folder

VERSION = 1
WAIT_S = 30.0
MAX_LINE = 200_000
_SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    uid TEXT NOT NULL UNIQUE,
    time TEXT NOT NULL,
    kind TEXT NOT NULL,
    item TEXT NOT NULL,
    student TEXT NOT NULL,
    data TEXT NOT NULL
)
"""
_INSERT = (
    "INSERT OR IGNORE INTO events (uid, time, kind, item, student, data) VALUES (?, ?, ?, ?, ?, ?)"
)


@dataclass(frozen=True)
class Event:
    """One thing that happened; `data` is plain JSON."""

    uid: str
    time: str
    kind: str
    item: str
    student: str
    data: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """The event as one JSON object."""
        return dict(vars(self))


class Store:
    """The events of one file (None: of this process only). Safe for threads and processes.

    trouble: why nothing is saved, "" if all is well. unread: the file could not even be read.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.trouble = ""
        self.unread = False
        self._lock = threading.RLock()
        self._db = self._open(path)

    def _open(self, path: Path | None) -> sqlite3.Connection:
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                return self._connect(str(path))
            except (sqlite3.Error, OSError) as error:
                rows = read_rows(path)
                self.unread = rows is None
                self._warn(error)
                self.path = None
                db = self._connect(":memory:")
                db.executemany(_INSERT, rows or ())
                return db
        return self._connect(":memory:")

    @staticmethod
    def _connect(where: str) -> sqlite3.Connection:
        db = sqlite3.connect(where, timeout=WAIT_S, isolation_level=None, check_same_thread=False)
        try:
            with contextlib.suppress(sqlite3.OperationalError):
                # Some network disks cannot share memory; the rollback journal is safe there.
                db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
            db.execute(_SCHEMA)
            db.execute("CREATE INDEX IF NOT EXISTS events_of_item ON events (item, kind)")
            # Asks for the write lock, so that a file that cannot be written is found out here.
            db.execute("BEGIN IMMEDIATE")
            db.execute("COMMIT")
        except BaseException:
            db.close()
            raise
        return db

    def _warn(self, error: Exception) -> None:
        lost = ", and what is in it cannot be read" if self.unread else ""
        self.trouble = (
            f"progress cannot be saved in {self.path} ({error}){lost}; it is kept in memory and "
            "ends with this kernel. Set LLMLAB_DATA_DIR to a folder that can be written."
        )
        warnings.warn(self.trouble, RuntimeWarning, stacklevel=4)

    def add(
        self, kind: str, item: str, data: dict[str, Any], student: Student | None = None
    ) -> Event:
        """Append one event; it is on the disk when this returns."""
        name = student.name if student else ""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        event = Event(uuid.uuid4().hex, now, kind, item, name, data)
        with self._lock:
            try:
                self._insert([event])
            except sqlite3.Error as error:
                if self.path is None:
                    raise
                self._to_memory(error)
                self._insert([event])
        return event

    def _to_memory(self, error: Exception) -> None:
        """The disk refuses now: carry on in memory with what can still be read."""
        self._warn(error)
        try:
            seen = list(self.events())
        except sqlite3.Error:
            seen = []
        self._db.close()
        self.path = None
        self._db = self._connect(":memory:")
        self._insert(seen)

    def _insert(self, events: Iterable[Event]) -> int:
        rows = [
            (e.uid, e.time, e.kind, e.item, e.student, json.dumps(e.data, ensure_ascii=False))
            for e in events
        ]
        with self._lock:
            before = self._db.total_changes
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._db.executemany(_INSERT, rows)
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # a full disk has rolled back already
                    self._db.execute("ROLLBACK")
                raise
            return self._db.total_changes - before

    def events(self, kind: str | None = None, item: str | None = None) -> Iterator[Event]:
        """Events in the order they were added, all or of one kind or item."""
        query = (
            "SELECT uid, time, kind, item, student, data FROM events "
            "WHERE (?1 IS NULL OR kind = ?1) AND (?2 IS NULL OR item = ?2) ORDER BY seq"
        )
        with self._lock:
            rows = self._db.execute(query, (kind, item)).fetchall()
        for uid, time, row_kind, row_item, student, data in rows:
            yield Event(uid, time, row_kind, row_item, student, json.loads(data))

    def record(self, item: str, answer: Any, result: Result, student: Student) -> Event:
        """Append an attempt: the raw answer and what was said about it."""
        data = {
            "answer": answer,
            "state": result.state,
            "score": result.score,
            "understood": result.understood,
            "misconception": result.misconception,
            "hints": self.hints_taken(item),
            "fingerprint": student.fingerprint,
            "version": VERSION,
        }
        return self.add("attempt", item, data, student)

    def record_hint(self, item: str, level: int, student: Student) -> Event:
        """Append that a hint was shown."""
        return self.add("hint", item, {"level": level, "version": VERSION}, student)

    def hints_taken(self, item: str) -> int:
        """The deepest hint asked for so far, 0 for none."""
        return max((int(e.data.get("level", 0)) for e in self.events("hint", item)), default=0)

    def wrong_attempts(self, item: str) -> int:
        """Attempts at an item that were not right."""
        wrong = ("incorrect", "partial")
        return sum(e.data.get("state") in wrong for e in self.events("attempt", item))

    def export_jsonl(self, path: Path) -> int:
        """Write every event as one JSON object a line; returns how many."""
        events = list(self.events())
        text = "".join(json.dumps(e.as_json(), ensure_ascii=False) + "\n" for e in events)
        path.write_text(text, encoding="utf-8")
        return len(events)

    def import_jsonl(self, path: Path) -> int:
        """Add the events of a file that are not here yet; returns how many were new.

        ValueError names the line that is no event; then nothing is added. OSError without a file.
        """
        events = []
        try:
            with path.open(encoding="utf-8") as lines:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        events.append(_event(line, f"{path}:{number}"))
        except UnicodeDecodeError:
            raise ValueError(f"{path}: not text in UTF-8") from None
        return self._insert(events)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()


def _event(line: str, where: str) -> Event:
    try:
        if len(line) > MAX_LINE:
            raise ValueError(f"longer than {MAX_LINE:,} characters")
        data = json.loads(line)
        event = Event(**data)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{where}: not an event of llmlab ({error})") from None
    words = (event.uid, event.time, event.kind, event.item, event.student)
    if not all(isinstance(w, str) for w in words) or not isinstance(event.data, dict):
        raise ValueError(f"{where}: not an event of llmlab (a field has the wrong type)")
    return event


_default: dict[Path, Store] = {}
_default_lock = threading.Lock()


def default_store() -> Store:
    """The store in the user's data folder, opened once."""
    path = data_folder() / "progress.db"
    with _default_lock:
        if path not in _default:
            _default[path] = Store(path)
        return _default[path]

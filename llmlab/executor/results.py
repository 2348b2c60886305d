"""Results as JSON lines: written one by one as cells end, so that a killed run can go on.

    {"format": "llmlab-cells/1", "kind": "sweep", "code": "0.1.0+sha256:...", "grid": {...}, ...}
    {"cell": 17, "ok": true, ...}
    {"cell": 18, "ok": false, "error": "...", ...}

Opening a file of the same grid and code goes on behind its last whole line; a last line that a
kill cut off is taken away. A file of another grid or other code is refused, never mixed.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

FORMAT = "llmlab-cells/1"


class Differs(ValueError):
    """The file was made from something else, so that it cannot be gone on with."""


class Results:
    """An open results file. `done` holds a byte a cell: 1 if the file has it."""

    def __init__(self, path: Path, header: dict[str, Any], cells: int) -> None:
        self.path = path
        self.header = header
        self.done = bytearray(cells)
        self.failed = 0
        self.repaired = False  # a torn last line was taken away
        self._file: IO[bytes] | None = None  # None: closed

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        kind: str,
        code: str,
        grid: dict[str, Any],
        cells: int,
        overwrite: bool = False,
        retry_failed: bool = False,
    ) -> Results:
        """Begin a file, or go on with one of the same kind, code, grid and number of cells.

        overwrite: begin anew whatever is there. retry_failed: forget the cells that failed.
        Raises Differs, saying what differs, for a file of another grid or code; ValueError for
        one that another process writes.
        """
        header = {"format": FORMAT, "kind": kind, "code": code, "cells": cells, "grid": grid}
        header = json.loads(json.dumps(header))  # as it will be read again
        results = cls(Path(path), header, cells)
        results._open(overwrite)
        try:
            if overwrite or not results._header_is_there():
                results._begin()
            else:
                results._read()
                if retry_failed and results.failed:
                    results._forget_failed()
        except BaseException:
            results.close()
            raise
        return results

    @property
    def count(self) -> int:
        """Cells in the file, failed ones too."""
        return sum(self.done)

    def write(self, cell: int, line: dict[str, Any]) -> None:
        """Append one cell and hand it to the operating system at once.

        A kill of this process loses nothing that was written. ValueError for a cell twice.
        """
        if self.done[cell]:
            raise ValueError(f"{self.path}: cell {cell} is in the file already")
        self._write({"cell": cell, **line})
        self.done[cell] = 1
        self.failed += not line["ok"]

    def lines(self) -> Iterator[dict[str, Any]]:
        """Every cell of the file, one at a time, in the order in which they ended."""
        with self.path.open("rb") as file:
            next(file)
            for line in file:
                yield json.loads(line)

    def close(self) -> None:
        """Close the file and let others write it."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Results:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ the file

    def _open(self, overwrite: bool) -> None:
        """Open for reading and appending, and lock: one writer at a time."""
        if self.path.exists() and not overwrite and not _looks_like_ours(self.path):
            raise Differs(
                f"{self.path}: is not a results file of llmlab; give another --out, or --overwrite"
            )
        try:
            self._file = self.path.open("a+b", buffering=0)
        except OSError as error:
            raise ValueError(f"{self.path}: cannot be written ({error.strerror})") from None
        _lock(self._file, self.path)

    @property
    def _out(self) -> IO[bytes]:
        assert self._file is not None
        return self._file

    def _header_is_there(self) -> bool:
        """False for an empty file, or one killed before its first line was whole."""
        self._repair()
        return self._out.seek(0, os.SEEK_END) > 0

    def _repair(self) -> None:
        """Cut the file behind its last line break."""
        size = self._out.seek(0, os.SEEK_END)
        end = size
        while end:
            start = max(0, end - 65536)
            self._out.seek(start)
            at = self._out.read(end - start).rfind(b"\n")
            if at >= 0:
                end = start + at + 1
                break
            end = start
        if end < size:
            self._out.truncate(end)
            self.repaired = True

    def _begin(self) -> None:
        self._out.truncate(0)
        self._write(self.header)

    def _read(self) -> None:
        """Which cells are there; ValueError for another header or a line that is none."""
        with self.path.open("rb") as file:
            self._compare(_parsed(next(file), f"{self.path}:1"))
            for number, raw in enumerate(file, 2):
                line = _parsed(raw, f"{self.path}:{number}")
                cell = line.get("cell")
                if not isinstance(cell, int) or not 0 <= cell < len(self.done):
                    raise Differs(f"{self.path}:{number}: has no cell of this grid")
                if not isinstance(line.get("ok"), bool):
                    raise Differs(f"{self.path}:{number}: does not say how cell {cell} ended")
                if self.done[cell]:
                    raise Differs(f"{self.path}:{number}: cell {cell} is there twice")
                self.done[cell] = 1
                self.failed += not line["ok"]

    def _compare(self, theirs: dict[str, Any]) -> None:
        """Refuse a file that other input or other code made."""
        what = "give another --out to keep it, or --overwrite to begin anew"
        for key in ("format", "kind"):
            if theirs.get(key) != self.header[key]:
                raise Differs(
                    f"{self.path}: holds {theirs.get('kind')} in {theirs.get('format')}, not "
                    f"{self.header['kind']} in {FORMAT}; {what}"
                )
        if theirs.get("grid") != self.header["grid"]:
            where = _first_difference(theirs.get("grid"), self.header["grid"])
            raise Differs(f"{self.path}: was made for another grid ({where}); {what}")
        if theirs.get("code") != self.header["code"]:
            raise Differs(
                f"{self.path}: was made by other code ({theirs.get('code')}; this is "
                f"{self.header['code']}), whose figures must not be mixed; {what}"
            )
        if theirs.get("cells") != self.header["cells"]:
            raise Differs(f"{self.path}: was made for {theirs.get('cells')} cells; {what}")

    def _forget_failed(self) -> None:
        """Write the file anew without the failed cells; a kill meanwhile leaves the old one."""
        fresh = self.path.with_name(self.path.name + ".new")
        with fresh.open("wb") as file:
            file.write(_dumped(self.header))
            for line in self.lines():
                if line["ok"]:
                    file.write(_dumped(line))
                else:
                    self.done[line["cell"]] = 0
            file.flush()
            os.fsync(file.fileno())
        self.close()
        fresh.replace(self.path)
        self.failed = 0
        self._open(overwrite=False)

    def _write(self, line: dict[str, Any]) -> None:
        data = memoryview(_dumped(line))
        while data:  # unbuffered: a full disk raises here, with the cell not marked as done
            data = data[self._out.write(data) :]


def _dumped(line: dict[str, Any]) -> bytes:
    return json.dumps(line, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _looks_like_ours(path: Path) -> bool:
    """Whether a file begins as ours do, or is the beginning of one."""
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from None
    ours = _dumped({"format": FORMAT})[:-2]  # without the closing brace
    return head.startswith(b'{"format":"llmlab-cells/') or ours.startswith(head)


def _parsed(raw: bytes, where: str) -> dict[str, Any]:
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError):
        line = None
    if not isinstance(line, dict):
        raise Differs(f"{where}: is no line of JSON; take the line out, or give another --out")
    return line


def _first_difference(old: Any, new: Any, at: str = "") -> str:
    """The first place where two values differ, in words."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            if old.get(key) != new.get(key):
                return _first_difference(old.get(key), new.get(key), f"{at}.{key}" if at else key)
    shown = [text if len(text) <= 60 else text[:57] + "..." for text in map(json.dumps, (old, new))]
    return f"{at or 'grid'}: {shown[0]} there, {shown[1]} now"


def _lock(file: IO[bytes], path: Path) -> None:
    """Take the file for this process; the system lets go of it when the process ends."""
    if sys.platform == "win32":
        return  # there another process cannot replace it either, but could append
    import fcntl

    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    file.close()
    raise ValueError(f"{path}: another run is writing it; wait for it, or give another --out")

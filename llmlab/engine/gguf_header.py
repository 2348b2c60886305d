"""Is a GGUF header what its file can hold? Asked before a reader believes its length fields.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md: magic, version, counts, then key and
value pairs, then the shapes of the tensors. A reader that trusts a count of 2**60 never ends.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9
MOST_ELEMENTS = 4_000_000  # of all arrays: some vocabularies are 300,000 tokens and as many merges
MOST_DIMS = 4


def check_header(path: Path) -> None:
    """ValueError if a length, a count or a type of the header cannot be; OSError as usual."""
    with path.open("rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise ValueError("the file is empty") from None
        with data:
            _Walk(data).header()


class _Walk:
    """A position in the file that only moves forward, and never past the end."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0
        self._elements = 0

    def header(self) -> None:
        magic, version = self._take("<4sI")
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError(f"it begins with {magic!r}, version {version}; expected GGUF 2 or 3")
        tensors, pairs = self._take("<QQ")
        # Each needs at least this many bytes, so a loop over them ends with the file.
        self._fits(tensors * 24, "tensor count")
        self._fits(pairs * 13, "metadata count")
        for _ in range(pairs):
            self._string()
            (kind,) = self._take("<I")
            self._value(kind)
        for _ in range(tensors):
            self._string()
            (dims,) = self._take("<I")
            if not 1 <= dims <= MOST_DIMS:
                raise ValueError(f"a tensor of {dims} dimensions")
            self._skip(8 * dims + 4 + 8)

    def _value(self, kind: int) -> None:
        if kind in SCALAR_BYTES:
            self._skip(SCALAR_BYTES[kind])
        elif kind == STRING:
            self._string()
        elif kind == ARRAY:
            self._array()
        else:
            raise ValueError(f"no value type {kind}")

    def _array(self) -> None:
        kind, count = self._take("<IQ")
        self._elements += count
        if self._elements > MOST_ELEMENTS:
            raise ValueError(f"arrays of more than {MOST_ELEMENTS} elements")
        if kind in SCALAR_BYTES:
            self._skip(count * SCALAR_BYTES[kind])
        elif kind == STRING:
            for _ in range(count):
                self._string()
        else:
            raise ValueError(f"an array of type {kind}")

    def _string(self) -> None:
        (length,) = self._take("<Q")
        self._skip(length)

    def _take(self, form: str) -> tuple[Any, ...]:
        at = self._at
        self._skip(struct.calcsize(form))
        return struct.unpack_from(form, self._data, at)

    def _skip(self, count: int) -> None:
        self._fits(count, "length")
        self._at += count

    def _fits(self, count: int, what: str) -> None:
        left = len(self._data) - self._at
        if count > left:
            raise ValueError(f"a {what} at byte {self._at} needs {count} bytes, {left} are left")

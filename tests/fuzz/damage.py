"""Damage to good files: bytes replaced, length fields made huge, ends cut off, pieces doubled."""

from __future__ import annotations

import os
import struct
import time
import tracemalloc
from collections.abc import Callable
from typing import TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

T = TypeVar("T")
SECONDS, BYTES = 10.0, 64 * 2**20  # of one input: CPU time and memory
# LLMLAB_FUZZ=20000 makes twenty thousand of each kind; CI makes do with few.
fuzz = settings(
    max_examples=int(os.environ.get("LLMLAB_FUZZ", "25")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

_NUMBERS = st.sampled_from(
    [0, 1, 2**7, 2**8 - 1, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**60, 2**63 - 1, 2**64 - 1]
)
_JSON = [b"{", b"}", b"[" * 60, b'"', b"null", b"NaN", b"1e999", b"-1", b"true", b"\\ud800"]
_YAML = [b": ", b"- ", b"&a *a", b"!!python/object:os.system ", b"**", b"1e-9999"]
_TEXT = [b"", b"\0", b"\xff\xfe", b"\xe2\x82", b"9" * 400, b"\n", b"\r\n", b"../../", b"data:"]
_WORDS = st.sampled_from([*_JSON, *_YAML, *_TEXT])
_PIECE = st.one_of(
    st.binary(max_size=8), _WORDS, _NUMBERS.map(lambda n: struct.pack("<Q", n)),
    _NUMBERS.map(lambda n: struct.pack("<I", n % 2**32)),
)  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """One to four wounds, and now and then an end that is missing."""
    data = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        at, piece = draw(st.integers(0, len(data))), draw(_PIECE)
        over = draw(st.sampled_from([0, len(piece), 1, 20]))
        data[at : at + over] = piece
    if draw(st.integers(0, 3)) == 0:
        del data[draw(st.integers(0, len(data))) :]
    return bytes(data)


def contained(read: Callable[[], T], *allowed: type[Exception]) -> T | None:
    """What `read` gives, or None if it refuses as it may: in time, and within bounded memory."""
    start = time.process_time()
    tracemalloc.start()
    try:
        return read()
    except allowed:
        return None
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < BYTES, f"{peak / 2**20:.0f} MiB for one small input"
        assert time.process_time() - start < SECONDS, "it hangs"

"""Damaged files and streams are refused in words: no crash, no hang, no flood of memory.

LLMLAB_FUZZ=20000 python -m pytest tests/fuzz      as long as you have
"""

from __future__ import annotations

import json
import struct
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from llmlab.check.grade import Grader, Row
from llmlab.check.library import read_questions, read_worksheet
from llmlab.check.roster import Enrolled
from llmlab.check.store import Store
from llmlab.check.student import Student, load_sheet, make_sheet
from llmlab.check.yaml_lines import ContentError
from llmlab.data import data_path
from llmlab.engine.gguf_file import open_gguf
from llmlab.engine.weights import SafetensorsIndex, random_source
from llmlab.measure.metrics import summarize
from llmlab.measure.sse import SSEDecoder
from llmlab.trace import Trace
from tests.engine.test_gguf import TINY, write_gguf
from tests.fuzz.damage import contained, damaged, fuzz

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.fixture(scope="module")
def gguf_bytes(place: Path) -> bytes:
    write_gguf(place / "good.gguf", TINY)
    return (place / "good.gguf").read_bytes()


HEAD = 6000  # header and vocabulary of that file; behind it are only weights


@fuzz
@given(data=st.data())
def test_gguf(data: st.DataObject, place: Path, gguf_bytes: bytes) -> None:
    bad = data.draw(damaged(gguf_bytes[:HEAD]))
    whole = data.draw(st.booleans())
    path = written(place / "bad.gguf", bad + (gguf_bytes[HEAD:] if whole else b""))

    def read() -> None:
        source = open_gguf(path)
        for name in source.names[:3]:
            source.get(name)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        contained(read, ValueError)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


@pytest.mark.parametrize("count", [2**63, 2**40, 10**8])
@pytest.mark.parametrize(
    "header",
    [
        lambda n: struct.pack("<QQ", n, 0),  # tensors
        lambda n: struct.pack("<QQ", 0, n),  # pairs of metadata
        lambda n: struct.pack("<QQ", 0, 1) + text(b"a") + struct.pack("<IIQ", 9, 4, n),  # numbers
        lambda n: struct.pack("<QQ", 0, 1) + text(b"a") + struct.pack("<IIQ", 9, 8, n),  # texts
        lambda n: struct.pack("<QQ", 0, 1) + struct.pack("<Q", n),  # the length of a name
    ],
)
def test_a_gguf_count_that_the_file_cannot_hold(place: Path, header, count: int) -> None:
    path = written(place / "count.gguf", b"GGUF" + struct.pack("<I", 3) + header(count))
    with pytest.raises(ValueError, match=r"not a whole GGUF file: (a|arrays) "):
        contained(lambda: open_gguf(path))


@fuzz
@given(data=st.data())
def test_safetensors(data: st.DataObject, place: Path) -> None:
    good = place / "good.safetensors"
    if not good.exists():
        source = random_source(TINY)
        save_file({name: source.get(name).float() for name in source.names[:4]}, good)
    head = int.from_bytes(good.read_bytes()[:8], "little") + 8
    bad = data.draw(damaged(good.read_bytes()[:head])) + good.read_bytes()[head:]
    path = written(place / "bad.safetensors", bad)

    def read() -> None:
        index = SafetensorsIndex([path], folder=place)
        for name in index.names:
            index.get(name)

    contained(read, ValueError)


STREAM = b'event: x\nid: 1\ndata: {"a": 1}\ndata: b\n\n: ping\r\ndata: [DONE]\r\n\r\n' * 3


@fuzz
@given(bad=damaged(STREAM), cuts=st.lists(st.integers(1, 40), min_size=1))
def test_server_sent_events(bad: bytes, cuts: list[int]) -> None:
    def read() -> None:
        decoder, at, turn = SSEDecoder(max_event=500), 0, 0
        while at < len(bad):
            size = cuts[turn % len(cuts)]
            for event in decoder.feed(bad[at : at + size]):
                assert len(event.data) <= 500
            at, turn = at + size, turn + 1

    contained(read, ValueError)


def smallest(kind: str) -> list[bytes]:
    return sorted((p.read_bytes() for p in data_path(kind).glob("*.yaml")), key=len)[:4]


SHEETS, BANKS = smallest("worksheets"), smallest("questions")


@fuzz
@given(bad=st.sampled_from(SHEETS).flatmap(damaged))
def test_worksheets(bad: bytes, place: Path) -> None:
    contained(lambda: read_worksheet(written(place / "w.yaml", bad)), ContentError)


@fuzz
@given(bad=st.sampled_from(BANKS).flatmap(damaged))
def test_questions(bad: bytes, place: Path) -> None:
    contained(lambda: read_questions(written(place / "q.yaml", bad)), ContentError)


EVENTS = [
    {"uid": f"u{n}", "time": "2026-03-01T12:00:00+00:00", "kind": kind, "item": item,
     "student": "ada", "data": more}
    for n, (kind, item, more) in enumerate([
        ("attempt", "B12.gaps", {"answer": 3, "state": "correct", "score": 1.0, "hints": 0}),
        ("attempt", "B11.ttft", {"answer": "0.4 s", "state": "partial"}),
        ("prose", "A1.why", {"text": "because of the cache " * 3}),
        ("self", "A1.why", {"met": ["a"], "sha256": "00", "score": 0.5}),
        ("code", "attention", {"passed": True}),
    ])
]  # fmt: skip
HAND_IN = json.dumps(
    {"kind": "llmlab-handin", "version": 1, "student": "ada", "fingerprint": "abcdef",
     "created": "2026-03-01T12:00:00+00:00", "lab": "0", "events": EVENTS}
).encode()  # fmt: skip
NOTEBOOK = json.dumps(
    {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [
        {"cell_type": "code", "id": "a", "metadata": {}, "outputs": [], "execution_count": None,
         "source": 'gaps = -(2 + 3) * 4\nwhy = """so"""\ncheck("B12.gaps", gaps)'},
        {"cell_type": "code", "id": "b", "metadata": {}, "outputs": [], "execution_count": None,
         "source": ["x = {'a': 1.5e3}\n", "check('B11.ttft', '0.4 s')"]},
    ]}
).encode()  # fmt: skip


@pytest.fixture(scope="module")
def grader() -> Grader:
    return Grader([Enrolled("ada", "Ada")])


@fuzz
@given(bad=damaged(HAND_IN), notebook=damaged(NOTEBOOK))
def test_hand_ins(bad: bytes, notebook: bytes, place: Path, grader: Grader) -> None:
    for name, data in (("ada.json", bad), ("ada.ipynb", notebook)):
        path = written(place / name, data)
        row = contained(lambda path=path: grader.grade_file(path, "x"))
        assert row is not None
        assert "could not be graded" not in row.reason, "a reason that names what is wrong"
        assert Row.from_json(json.loads(json.dumps(row.to_json()))).file == "x"


@fuzz
@given(bad=damaged("".join(json.dumps(e) + "\n" for e in EVENTS).encode()))
def test_attempts_from_a_file(bad: bytes, place: Path) -> None:
    store = Store(None)
    contained(lambda: store.import_jsonl(written(place / "e.jsonl", bad)), ValueError)
    store.close()


SHEET = json.dumps(make_sheet(Student("ada"), lambda who: {"b12": {"tokens": 5}})).encode()


@fuzz
@given(bad=damaged(SHEET))
def test_a_students_sheet(bad: bytes, place: Path) -> None:
    contained(lambda: load_sheet(written(place / "s.json", bad)), ValueError)


TRACES = sorted(data_path("questions", "traces").glob("*.jsonl"))


@fuzz
@given(bad=st.sampled_from([path.read_bytes() for path in TRACES]).flatmap(damaged))
def test_traces(bad: bytes, place: Path) -> None:
    contained(lambda: summarize(Trace.read_jsonl(written(place / "t.jsonl", bad))), ValueError)


def test_damage_is_found_where_it_is(place: Path, gguf_bytes: bytes) -> None:
    """The harness sees a crash and a flood."""
    with pytest.raises(KeyError):
        contained(lambda: {}["x"], ValueError)
    with pytest.raises(AssertionError, match="MiB for one"):
        contained(lambda: bytes(100 * 2**20), ValueError)
    assert sys.getrecursionlimit() < 10_000

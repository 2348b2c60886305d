"""Server-sent events: the standard's reading, whatever the cut of the bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmlab.measure.sse import Event, SSEDecoder


def decode(raw: bytes, cuts=()) -> list[Event]:
    decoder = SSEDecoder()
    edges = [0, *sorted(cuts), len(raw)]
    parts = [raw[a:b] for a, b in pairwise(edges)]
    return [event for part in parts for event in decoder.feed(part)]


def data_of(raw: bytes) -> list[str]:
    return [event.data for event in decode(raw)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_each_line_end_of_the_standard_ends_a_line(end):
    assert data_of(b"data: a" + end + end + b"data: b" + end + end) == ["a", "b"]


def test_lines_of_one_event_are_joined_by_a_line_feed():
    assert data_of(b"data: a\ndata:\ndata:  b\n\n") == ["a\n\n b"]


def test_comments_pings_and_unknown_fields_are_no_events():
    assert data_of(b": ping\n\n:\n\nretry: 10\n\nfoo: bar\n\ndata: x\n\n") == ["x"]


def test_only_one_space_after_the_colon_is_dropped():
    assert data_of(b"data:  two\n\ndata:none\n\ndata\n\n") == [" two", "none", ""]


def test_names_and_ids_are_kept_and_a_name_lasts_for_one_event():
    events = decode(b"event: error\nid: 7\ndata: x\n\ndata: y\n\n")
    assert events == [Event("x", "error", "7"), Event("y", "message", "7")]


def test_an_event_that_is_not_ended_is_dropped():
    assert data_of(b"data: whole\n\ndata: cut off\n") == ["whole"]


def test_a_byte_order_mark_is_skipped_even_in_pieces():
    assert [e.data for e in decode(b"\xef\xbb\xbfdata: x\n\n", cuts=(1, 2))] == ["x"]


def test_an_event_is_given_out_with_the_bytes_that_complete_it():
    decoder = SSEDecoder()
    assert decoder.feed(b"data: x\r\n\r") == [Event("x")]  # its LF is still to come
    assert decoder.feed(b"\n") == []
    assert decoder.feed(b"data: y\n") == []
    assert decoder.feed(b"\n") == [Event("y")]


def test_broken_utf8_is_replaced_not_fatal():
    assert data_of(b"data: \xff\n\n") == ["\ufffd"]


@pytest.mark.parametrize("piece", [b"x" * 100, b"data: " + b"x" * 100 + b"\n"])
def test_an_event_without_end_does_not_fill_the_memory(piece):
    decoder = SSEDecoder(max_event=1000)
    with pytest.raises(ValueError, match="larger than 1000 bytes"):
        [decoder.feed(piece) for _ in range(100)]


LINES = st.sampled_from(
    [
        b"data: tok",
        b"data:",
        b": ping",
        b"event: e",
        b"",
        b"",
        "data: gr\u00fc\u00df\U0001f600".encode(),
    ]
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@settings(deadline=None)  # a busy machine is no failure
@given(st.data())
def test_any_cut_of_the_bytes_gives_the_same_events(data):
    lines = data.draw(st.lists(st.tuples(LINES, ENDS), max_size=30))
    raw = b"".join(line + end for line, end in lines)
    cuts = data.draw(st.lists(st.integers(0, len(raw)), max_size=12))
    assert decode(raw, cuts) == decode(raw)
    assert decode(raw, range(1, len(raw))) == decode(raw)


@settings(deadline=None)  # a busy machine is no failure
@given(st.lists(st.text(alphabet=st.characters(blacklist_categories=["Cs"])), max_size=8))
def test_what_a_server_writes_by_the_standard_is_what_is_read(texts):
    texts = [text.replace("\r", "") for text in texts]
    lines = ["".join(f"data: {line}\n" for line in text.split("\n")) + "\n" for text in texts]
    assert data_of("".join(lines).encode()) == texts

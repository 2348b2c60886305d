"""A trace survives its file, and a bad file is a clear error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmlab.trace import FORMAT, RequestRecord, StepRecord, TokenEvent, Trace

stamps = st.integers(0, 2**62)
maybe = st.none() | stamps
names = st.text(max_size=8)
events = st.builds(
    TokenEvent,
    stamps,
    st.none() | st.integers(1, 99),
    st.sampled_from(["content", "reasoning", "tool"]),
)
requests = st.builds(
    RequestRecord,
    request_id=names,
    class_name=names,
    prompt_tokens=maybe,
    t_sched=maybe,
    t_send=maybe,
    t_queued=maybe,
    t_first_scheduled=maybe,
    events=st.lists(events, max_size=3),
    preemptions=st.lists(st.tuples(stamps, maybe), max_size=2),
    outcome=st.sampled_from(["completed", "failed", "cancelled", "rejected", "in_flight"]),
    finish_reason=st.none() | names,
    t_end=maybe,
    reads=st.lists(st.tuples(stamps, st.integers(0, 9)), max_size=2),
    frames=st.dictionaries(names, st.integers(0, 9), max_size=2),
)
steps = st.builds(
    StepRecord,
    index=st.integers(0, 99),
    t_start=stamps,
    t_end=stamps,
    scheduled=st.lists(
        st.tuples(names, st.integers(1, 99), st.integers(0, 99), st.booleans()), max_size=3
    ),
    preempted=st.lists(names, max_size=2),
    blocks_used=st.integers(0, 99),
    utilization=st.none()
    | st.dictionaries(names, st.floats(allow_nan=False, allow_infinity=False), max_size=2),
)
traces = st.builds(
    lambda meta, rs, ss: Trace(meta, {r.request_id: r for r in rs}, ss),
    st.dictionaries(names.filter(lambda n: n != "format"), names | st.integers(), max_size=3),
    st.lists(requests, max_size=4, unique_by=lambda r: r.request_id),
    st.lists(steps, max_size=4),
)


@settings(max_examples=60, deadline=None)
@given(traces)
def test_a_trace_read_back_is_the_trace(tmp_path_factory, trace: Trace) -> None:
    path = tmp_path_factory.mktemp("trace") / "t.jsonl"
    trace.write_jsonl(path)
    again = Trace.read_jsonl(path)
    assert again.meta == {**trace.meta, "format": FORMAT}
    assert (again.requests, again.steps) == (trace.requests, trace.steps)


def good_lines() -> list[str]:
    step = StepRecord(0, 1, 5, [("a", 3, 0, False), ("b", 1, 9, True)])
    trace = Trace({}, {"a": RequestRecord("a", t_send=1, events=[TokenEvent(5)])}, [step])
    return list(trace.jsonl_lines())


HOSTILE = {
    "no JSON": "{",
    "empty line": "\n",
    "a number": "7",
    "a list": "[1]",
    "no kind": "{}",
    "unknown kind": '{"kind": "prophecy"}',
    "second header": '{"kind": "header", "format": "llmlab-trace/1", "meta": {}}',
    "unknown field": '{"kind": "request", "request_id": "x", "events": [], "preemptions": [],'
    ' "z": 1}',
    "no events": '{"kind": "request", "request_id": "x"}',
    "nested without end": "[" * 100_000,
    "a text for a stamp": '{"kind": "request", "request_id": "x", "events": [], "preemptions": [],'
    ' "t_send": "now"}',
    "a fraction for a stamp": '{"kind": "request", "request_id": "x", "events": [{"t": 1.5}],'
    ' "preemptions": []}',
    "NaN for a stamp": '{"kind": "request", "request_id": "x", "events": [{"t": NaN}],'
    ' "preemptions": []}',
    "no name": '{"kind": "request", "request_id": null, "events": [], "preemptions": []}',
    "the same request again": '{"kind": "request", "request_id": "a", "events": [],'
    ' "preemptions": []}',
    "a step that schedules no pair": '{"kind": "step", "index": 0, "t_start": 0, "t_end": 1,'
    ' "scheduled": [["a"]]}',
    "a step without a time": '{"kind": "step", "index": 0, "t_start": null, "t_end": 1,'
    ' "scheduled": []}',
    "a number for a class": '{"kind": "request", "request_id": "x", "events": [],'
    ' "preemptions": [], "class_name": 5}',
    "a list for an outcome": '{"kind": "request", "request_id": "x", "events": [],'
    ' "preemptions": [], "outcome": ["completed"]}',
    "a number for a channel": '{"kind": "request", "request_id": "x", "events": [{"t": 1,'
    ' "channel": 5}], "preemptions": []}',
    "a read without a size": '{"kind": "request", "request_id": "x", "events": [],'
    ' "preemptions": [], "reads": [[1, "many"]]}',
    "a number for a worker": '{"kind": "step", "index": 0, "t_start": 0, "t_end": 1,'
    ' "scheduled": [], "worker": 5}',
    "a number for a victim": '{"kind": "step", "index": 0, "t_start": 0, "t_end": 1,'
    ' "scheduled": [], "preempted": [5]}',
    "a list for figures": '{"kind": "step", "index": 0, "t_start": 0, "t_end": 1,'
    ' "scheduled": [], "utilization": [5]}',
    "a number of 5000 digits": '{"kind": "step", "index": ' + "9" * 5000 + "}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_bad_line_is_an_error_that_names_file_and_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / "t.jsonl"
    lines = good_lines()
    path.write_text("".join(lines[:2]) + HOSTILE[name].rstrip("\n") + "\n" + lines[2])
    with pytest.raises(ValueError, match=r"t\.jsonl:3: not a trace line: "):
        Trace.read_jsonl(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", r"t\.jsonl: empty file, expected a trace"),
        (b"\xff\xfe\x00garbage", r"t\.jsonl: not a trace, which is UTF-8 text"),
        (b'{"kind": "header", "format": "other/9", "meta": {}}', r":1: .*format 'other/9'"),
        (b'{"kind": "header", "format": "llmlab-trace/1", "meta": [1]}', r":1: not a trace line"),
        (b'{"kind": "step"}', r":1: .*the header belongs on line 1"),
    ],
)
def test_a_file_that_is_no_trace_says_so(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words):
        Trace.read_jsonl(path)


def test_a_trace_with_a_number_json_has_not_is_not_written(tmp_path: Path) -> None:
    step = StepRecord(0, 1, 2, [], utilization={"compute": float("nan")})
    with pytest.raises(ValueError, match="JSON"):
        Trace(steps=[step]).write_jsonl(tmp_path / "t.jsonl")


def test_a_step_counts_its_decode_and_prefill_tokens() -> None:
    step = json.loads(good_lines()[2])
    step.pop("kind")
    record = StepRecord(**step)
    assert (record.decode_tokens, record.prefill_tokens) == (1, 3)

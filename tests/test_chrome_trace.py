"""The Chrome trace says what the trace says, in microseconds."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings

from llmlab.chrome_trace import ENGINE, REQUESTS, to_chrome
from llmlab.trace import RequestRecord, StepRecord, TokenEvent, Trace
from tests.test_trace import traces


def example() -> Trace:
    """a is preempted in step 1 and goes on in step 2; b never begins."""
    a = RequestRecord(
        "a",
        t_send=5_000_000,
        t_queued=5_001_000,
        t_first_scheduled=5_003_000,
        events=[TokenEvent(5_009_000), TokenEvent(5_020_000, 2)],
        preemptions=[(5_010_000, 5_015_000)],
        outcome="completed",
        finish_reason="length",
        t_end=5_020_000,
    )
    b = RequestRecord("b", t_queued=5_002_000, outcome="cancelled", t_end=5_012_000)
    steps = [
        StepRecord(0, 5_003_000, 5_009_000, [("a", 7, 0, False)], [], 2, 1, 1, 0, {"compute": 0.5}),
        StepRecord(1, 5_010_000, 5_015_000, [], ["a"], 0, 0, 1),
        StepRecord(2, 5_015_000, 5_020_000, [("a", 1, 8, True)], [], 3, 0, 0),
    ]
    return Trace({"source": "engine"}, {"a": a, "b": b}, steps)


def spans(trace: Trace, process: int) -> list[tuple[int, str, float, float]]:
    events = to_chrome(trace)["traceEvents"]
    chosen = [e for e in events if e["ph"] == "X" and e["pid"] == process]
    return [(e["tid"], e["name"], e["ts"], e["dur"]) for e in chosen]


def test_a_request_is_a_track_of_its_waits_and_its_work() -> None:
    assert sorted(spans(example(), REQUESTS)) == [
        (1, "before the queue", 0.0, 1.0),
        (1, "decode", 15.0, 5.0),
        (1, "preempted", 10.0, 5.0),
        (1, "prefill 7", 3.0, 6.0),
        (1, "queue", 1.0, 2.0),
        (2, "queue", 2.0, 10.0),
    ]


def test_a_request_scheduled_at_zero_did_not_queue_to_its_end() -> None:
    """A virtual clock starts at 0, which is a stamp like any other."""
    first = RequestRecord("a", t_queued=0, t_first_scheduled=0, outcome="completed", t_end=9_000)
    assert spans(Trace(requests={"a": first}), REQUESTS) == [(1, "queue", 0.0, 0.0)]


def test_steps_are_a_track_with_their_tokens() -> None:
    assert spans(example(), ENGINE) == [
        (1, "step 0", 3.0, 6.0),
        (1, "step 1", 10.0, 5.0),
        (1, "step 2", 15.0, 5.0),
    ]
    first = next(e for e in to_chrome(example())["traceEvents"] if e["name"] == "step 0")
    assert (first["args"]["prefill_tokens"], first["args"]["compute"]) == (7, 0.5)


def test_counters_show_the_pool_after_each_step() -> None:
    events = [e for e in to_chrome(example())["traceEvents"] if e["ph"] == "C"]
    of = {name: [] for name in ("blocks used", "running", "waiting")}
    for event in events:
        of[event["name"]].append((event["ts"], event["args"][event["name"]]))
    assert of["blocks used"] == [(9.0, 2), (15.0, 0), (20.0, 3)]
    assert of["running"] == [(9.0, 1), (15.0, 0), (20.0, 0)]
    assert of["waiting"] == [(9.0, 1), (15.0, 1), (20.0, 0)]


def test_tokens_and_the_end_are_instants() -> None:
    instants = [e for e in to_chrome(example())["traceEvents"] if e["ph"] == "i"]
    found = [(e["tid"], e["name"], e["ts"]) for e in instants]
    assert found == [
        (1, "token", 9.0),
        (1, "token", 20.0),
        (1, "completed", 20.0),
        (2, "cancelled", 12.0),
    ]
    assert instants[1]["args"]["tokens"] == 2


def test_every_track_has_a_name_and_no_event_is_before_zero() -> None:
    chrome = to_chrome(example())
    events = chrome["traceEvents"]
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] in "Xi"} <= named
    assert min(e["ts"] for e in events if "ts" in e) == 0
    assert chrome["otherData"] == {"t0_ns": 5_000_000, "source": "engine"}


def test_an_empty_trace_and_a_client_s_trace_without_steps_can_be_written() -> None:
    assert to_chrome(Trace())["otherData"] == {"t0_ns": 0}
    client = Trace(requests={"a": RequestRecord("a", t_send=1, events=[TokenEvent(2)])})
    assert [e["ph"] for e in to_chrome(client)["traceEvents"]].count("i") == 1


def test_an_interval_that_ends_before_it_begins_is_refused() -> None:
    trace = Trace(steps=[StepRecord(3, 10, 5, [])])
    with pytest.raises(ValueError, match=r"step 3: .* must not end before it begins"):
        to_chrome(trace)


def test_a_step_for_a_request_there_is_none_of_is_refused() -> None:
    trace = Trace(steps=[StepRecord(3, 1, 5, [("ghost", 1, 0, False)])])
    with pytest.raises(ValueError, match="step 3 schedules 'ghost'"):
        to_chrome(trace)


@settings(max_examples=40, deadline=None)
@given(traces)
def test_any_trace_becomes_json_or_a_clear_refusal(trace: Trace) -> None:
    try:
        chrome = to_chrome(trace)
    except ValueError:
        return  # a negative interval or an unknown request; each has its test above
    json.dumps(chrome, allow_nan=False)
    assert all(e.get("ts", 0) >= 0 and e.get("dur", 0) >= 0 for e in chrome["traceEvents"])

"""What the load client measures and counts, against servers that do as they are told."""

from __future__ import annotations

import asyncio
import json
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmlab.measure.client import Call, Endpoint, LoadClient
from llmlab.measure.frames import AnswerReader
from llmlab.measure.metrics import request_metrics, summarize
from tests.measure.stub_server import (
    DONE,
    HEAD,
    frame,
    http_chunk,
    stream,
    stub_server,
    token,
    usage,
)

MS = 1_000_000
FINISH = frame(token("", finish_reason="stop"))
KEY = "sk-secret-secret-secret"


def run(url, calls=None, *, api="completions", client=None, endpoint=None, **more):
    endpoint = endpoint or Endpoint(url, "m", api=api)
    client = client or LoadClient(endpoint, keep_text=True)
    asyncio.run(client.run([Call("r0", "hi", 8)] if calls is None else calls, **more))
    return client


def one(script, **more):
    with stub_server(script) as stub:
        client = run(stub.url, **more)
    return client.trace.requests["r0"], client


# -- which frames are tokens ---------------------------------------------------------------


def test_role_empty_finish_usage_and_done_frames_are_no_token_events():
    def chat(**delta):
        return frame({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})

    finish = frame({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    last = frame({"choices": [], "usage": usage(2)})
    script = stream(
        chat(role="assistant", content=""),
        b": ping\n\n",
        chat(content=""),
        chat(content="a"),
        chat(content="b"),
        finish,
        last,
        DONE,
        gap=0.05,
    )
    record, client = one(script, api="chat")
    assert record.frames == {
        "role": 1, "empty": 1, "content": 2, "finish": 1, "usage": 1, "done": 1
    }  # fmt: skip
    assert [event.k for event in record.events] == [1, 1]
    assert (record.outcome, record.finish_reason) == ("completed", "stop")
    assert (record.prompt_tokens, record.completion_tokens) == (5, 2)
    assert record.count_source == "usage"
    assert client.texts["r0"] == "ab"


def test_reasoning_stops_the_ttft_clock_and_content_the_answer_clock():
    def chat(**delta):
        return frame({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})

    last = frame({"choices": [], "usage": usage(2)})
    script = stream(chat(reasoning_content="hm"), chat(content="a"), last, DONE, gap=0.05)
    record, client = one(script, api="chat")
    assert [event.channel for event in record.events] == ["reasoning", "content"]
    measured = request_metrics(record)
    assert measured.ttfat - measured.ttft >= 45  # ms; the frames are sent 50 apart
    assert client.texts["r0"] == "a"


# -- how many tokens -----------------------------------------------------------------------


def test_several_tokens_in_a_frame_are_several_samples_of_the_gap():
    frames = [frame({**token("abcd"), "usage": usage(n)}) for n in (1, 5, 7, 8)]
    record, client = one(stream(*frames, FINISH, DONE, gap=0.05))
    assert [event.k for event in record.events] == [1, 4, 2, 1]
    assert client.k_sources == {"usage_growth": 1}
    assert len(request_metrics(record).itl) == 7
    assert record.completion_tokens == 8


def test_token_ids_and_logprobs_count_where_usage_does_not():
    ids = [frame(token("ab", token_ids=[1, 2])), frame(token("c", token_ids=[3]))]
    record, _ = one(stream(*ids, FINISH, DONE, gap=0.05))
    assert ([e.k for e in record.events], record.count_source) == ([2, 1], "token_ids")
    listed = [frame(token("ab", logprobs={"tokens": ["a", "b"]}))]
    record, _ = one(stream(*listed, FINISH, DONE))
    assert ([e.k for e in record.events], record.count_source) == ([2], "logprobs")


def test_one_token_a_frame_is_concluded_only_if_the_count_says_so():
    frames = [frame(token(t)) for t in "abc"]
    record, client = one(stream(*frames, frame({"choices": [], "usage": usage(3)}), DONE, gap=0.05))
    assert [event.k for event in record.events] == [1, 1, 1]
    assert client.k_sources == {"one_per_frame": 1}
    record, client = one(stream(*frames, frame({"choices": [], "usage": usage(9)}), DONE, gap=0.05))
    assert [event.k for event in record.events] == [None, None, None]
    assert request_metrics(record).itl is None, "no per-token gap is made up"
    assert request_metrics(record).assumed_one_token_first


def test_without_any_count_a_named_tokenizer_counts_the_text():
    script = stream(frame(token("a b ")), frame(token("c")), FINISH, DONE)
    with stub_server(script) as stub:
        counter = ("words", lambda text: len(text.split()))
        client = run(stub.url, client=LoadClient(Endpoint(stub.url, "m"), count_tokens=counter))
    record = client.trace.requests["r0"]
    assert (record.completion_tokens, record.count_source) == (3, "local:words")
    record, _ = one(script)
    assert (record.completion_tokens, record.count_source) == (None, None)


def test_a_count_that_is_none_is_not_used():
    for count in ("7", -1, 1.5, True, [1], {"a": 1}):
        odd = {"prompt_tokens": count, "completion_tokens": count, "prompt_tokens_details": count}
        reader = AnswerReader()
        for data in (token("a"), {"choices": [], "usage": odd}):
            reader.take(json.dumps(data), 1)
        assert reader.error is None
        assert (reader.prompt_tokens, reader.completion_tokens) == (None, None)
        assert reader.cached_tokens == 0


def test_frames_of_one_read_are_one_event():
    both = frame(token("a", token_ids=[1])) + frame(token("b", token_ids=[2]))
    record, _ = one(stream(both, FINISH, DONE))
    assert [event.k for event in record.events] == [2]


def test_frames_of_one_read_in_http_chunks_of_their_own_are_one_event():
    body = http_chunk(frame(token("a", token_ids=[1]))) + http_chunk(
        frame(token("b", token_ids=[2]))
    )
    record, _ = one([HEAD, 0.01, body, http_chunk(FINISH + DONE), b"0\r\n\r\n"])
    assert [event.k for event in record.events] == [2]


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_any_cut_of_the_stream_gives_the_same_text_and_counts(data):
    counts = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    total, frames = 0, []
    for k in counts:
        total += k
        frames.append(frame({**token("w" * k + " "), "usage": usage(total)}))
    raw = b"".join([*frames, FINISH, DONE])
    cuts = sorted(data.draw(st.lists(st.integers(1, len(raw) - 1), max_size=8, unique=True)))
    edges = [0, *cuts, len(raw)]
    parts = [raw[a:b] for a, b in pairwise(edges)]
    record, client = one([HEAD, *map(http_chunk, parts), b"0\r\n\r\n"])
    assert record.outcome == "completed"
    assert sum(event.k for event in record.events) == total == record.completion_tokens
    assert client.texts["r0"] == "".join("w" * k + " " for k in counts)


def test_reads_are_recorded_with_size_and_time():
    record, _ = one(stream(frame(token("a")), FINISH, DONE, gap=0.05))
    stamps = [t for t, _ in record.reads]
    assert stamps == sorted(stamps)
    assert stamps[0] >= record.t_send
    assert sum(size for _, size in record.reads) > len(HEAD)
    assert record.events[0].t in stamps


@pytest.mark.timing
def test_stamps_follow_the_server_within_two_milliseconds():
    frames = [frame({**token("a"), "usage": usage(i + 1)}) for i in range(20)]
    with stub_server(stream(*frames, FINISH, DONE, gap=0.05)) as stub:
        record = run(stub.url).trace.requests["r0"]
    sent = stub.sent_at[0][1:21]
    lags = sorted(event.t - t for event, t in zip(record.events, sent, strict=True))
    assert lags[len(lags) // 2] < 2 * MS


# -- how it ends ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            stream(frame(token("a")), frame({"error": {"message": "out of memory"}})),
            "out of memory",
        ),
        (stream(frame({"error": "boom"})), "boom"),
        (stream(frame(token("a"))), "without a finish reason or [DONE]"),
        ([HEAD, http_chunk(frame(token("a"))), "cut"], "connection"),
        ([HEAD, "cut"], "connection"),
        (["cut"], "connection"),
        (stream(frame("{not json"), DONE), "no completion chunk"),
        (stream(frame("[1, 2]"), DONE), "no completion chunk"),
        (stream(frame("[" * 100_000), DONE), "no completion chunk"),
        (stream(frame(token(5)), DONE), "no completion chunk"),
        (stream(frame({**token("a"), "usage": [5]}), DONE), "no completion chunk"),
        (stream(frame({"choices": [{"delta": {"content": ["a"]}}]}), DONE), "no completion chunk"),
        (stream(frame(token("a", finish_reason={"a": 1})), DONE), "no completion chunk"),
    ],
)
def test_http_200_is_not_yet_a_success(script, reason):
    record, client = one(script)
    assert record.outcome == "failed"
    assert reason in record.reason
    assert summarize(client.trace).all.counts.completed == 0


@pytest.mark.parametrize(
    ("status", "outcome"),
    [("429 Too Many", "rejected"), ("503 Busy", "rejected"), ("400 Bad", "failed"),
     ("401 No", "failed"), ("500 Oops", "failed")],
)  # fmt: skip
def test_a_refusal_keeps_its_status_and_message(status, outcome):
    body = json.dumps({"error": {"message": "because"}}).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    record, _ = one([head + body])
    assert record.outcome == outcome
    assert record.reason == f"HTTP {status[:3]}: because"


def test_a_finish_reason_or_done_is_enough():
    assert one(stream(frame(token("a")), DONE))[0].outcome == "completed"
    assert one(stream(frame(token("a", finish_reason="length"))))[0].outcome == "completed"


def test_an_answer_in_one_piece_has_counts_but_no_token_events():
    answer = {
        "choices": [{"index": 0, "text": "abc", "finish_reason": "length"}],
        "usage": usage(3),
    }
    body = json.dumps(answer).encode()
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with stub_server([head.encode() + body]) as stub:
        client = run(stub.url, endpoint=Endpoint(stub.url, "m", stream=False))
        assert b'"stream"' not in stub.requests[0]
    record = client.trace.requests["r0"]
    assert (record.outcome, record.completion_tokens, record.events) == ("completed", 3, [])
    measured = request_metrics(record)
    assert measured.ttft is None
    assert measured.e2e > 0


def test_a_scripted_leave_after_tokens_or_seconds_is_a_cancel():
    frames = [frame({**token("a"), "usage": usage(i + 1)}) for i in range(50)]
    with stub_server(stream(*frames, DONE, gap=0.05)) as stub:
        calls = [
            Call("tokens", "hi", 50, cancel_after_tokens=3),
            Call("seconds", "hi", 50, cancel_after_ns=100 * MS),
        ]
        client = run(stub.url, calls)
    by_tokens, by_time = client.trace.requests["tokens"], client.trace.requests["seconds"]
    assert (by_tokens.outcome, by_tokens.reason) == ("cancelled", "scripted")
    assert 3 <= sum(event.k for event in by_tokens.events) < 50
    assert (by_time.outcome, by_time.reason) == ("cancelled", "scripted")
    assert 100 * MS <= by_time.t_end - by_time.t_send < 2500 * MS, "before the stream's end"


@pytest.mark.parametrize("leaves", [None, 1800 * MS])
def test_a_client_that_waits_too_long_says_so(leaves):
    """Also one that was to leave later still."""
    with stub_server([HEAD, 2.0]) as stub:
        call = Call("r0", "hi", 8, cancel_after_ns=leaves)
        client = run(stub.url, [call], endpoint=Endpoint(stub.url, "m", timeout_s=0.1))
    record = client.trace.requests["r0"]
    assert (record.outcome, record.reason) == ("cancelled", "client_timeout")


def test_an_answer_in_one_piece_that_is_nested_without_end_is_a_failure():
    body = b"[" * 100_000
    head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
    for status in (b"200 OK", b"500 Oops"):
        record, _ = one([head % status + body])
        assert record.outcome == "failed"


def test_a_server_killed_in_the_middle_costs_only_what_was_open():
    def script(number: int) -> list:
        frames = [frame({**token("a"), "usage": usage(i + 1)}) for i in range(3)]
        whole = stream(*frames, DONE)
        return whole if number < 2 else [*whole[:3], "cut"]

    with stub_server(script) as stub:
        client = run(stub.url, [Call(f"r{i}", "hi", 3) for i in range(4)], max_concurrency=1)
    outcomes = [record.outcome for record in client.trace.requests.values()]
    assert outcomes == ["completed", "completed", "failed", "failed"]
    assert sum(e.k for e in client.trace.requests["r2"].events) == 2, "what arrived is kept"
    counts = summarize(client.trace).all.counts
    assert (counts.submitted, counts.completed, counts.failed) == (4, 2, 2)


def test_nobody_listening_is_a_failure_of_each_request():
    client = run("http://127.0.0.1:9", [Call("r0", "hi", 1), Call("r1", "hi", 1)])
    assert {r.outcome for r in client.trace.requests.values()} == {"failed"}
    assert "connection" in client.trace.requests["r0"].reason


# -- when it is sent -----------------------------------------------------------------------


def test_open_loop_sends_at_absolute_times_however_slow_the_answers():
    calls = [Call(f"r{i}", "hi", 1, t_sched_ns=i * 20 * MS) for i in range(10)]
    with stub_server(stream(frame(token("a")), DONE, gap=0.15)) as stub:
        client = run(stub.url, calls)
    records = list(client.trace.requests.values())
    start = client.trace.meta["t_start"]
    assert [r.t_sched - start for r in records] == [i * 20 * MS for i in range(10)]
    lags = sorted(r.t_send - r.t_sched for r in records)
    assert lags[0] >= 0
    assert lags[5] < 100 * MS, "the cost of sending would add up: answers take 150 ms each"


def test_waiting_for_a_place_in_the_client_is_waiting_from_the_schedule():
    calls = [Call(f"r{i}", "hi", 1, t_sched_ns=0) for i in range(3)]
    with stub_server(stream(frame({**token("a"), "usage": usage(1)}), DONE, gap=0.05)) as stub:
        client = run(stub.url, calls, max_concurrency=1)
    last = request_metrics(list(client.trace.requests.values())[-1])
    assert last.dispatch_delay > 180
    assert last.ttft < last.ttft_from_schedule - 180


def test_a_clients_patience_starts_when_it_sends_not_while_it_waits_for_a_place():
    calls = [
        Call("first", "hi", 1, t_sched_ns=0),
        Call("second", "hi", 1, t_sched_ns=0, cancel_after_ns=120 * MS),
    ]
    frames = [frame({**token("a"), "usage": usage(i + 1)}) for i in range(5)]
    with stub_server(stream(*frames, DONE, gap=0.05)) as stub:
        client = run(stub.url, calls, max_concurrency=1)
    second = client.trace.requests["second"]
    assert second.t_send - second.t_sched > 200 * MS, "it had to wait longer than its patience"
    assert (second.outcome, second.reason) == ("cancelled", "scripted")
    assert second.t_end - second.t_send >= 120 * MS
    assert summarize(client.trace).all.counts.cancelled_before_send == 0


@pytest.mark.slow
def test_a_run_cut_off_while_a_client_waits_for_a_place_never_sent_it():
    calls = [Call(f"r{i}", "hi", 1, t_sched_ns=0) for i in range(2)] + [
        Call("late", "hi", 1, t_sched_ns=10**12)
    ]
    # Long enough for the first to be sent on a busy machine, and shorter than its stream.
    with stub_server(stream(*[frame(token("a"))] * 9, DONE, gap=0.4)) as stub:
        client = run(stub.url, calls, max_concurrency=1, duration_s=1.2, drain=False)
    assert len(stub.requests) == 1
    assert client.trace.requests["r1"].outcome == "cancelled_before_send"
    assert summarize(client.trace).all.counts.cancelled_before_send == 1


def test_closed_loop_never_has_more_in_flight_than_clients():
    with stub_server(stream(frame({**token("a"), "usage": usage(1)}), DONE, gap=0.05)) as stub:
        client = run(stub.url, [Call(f"r{i}", "hi", 1) for i in range(9)], max_concurrency=3)
    group = summarize(client.trace).all
    assert group.counts.completed == 9
    assert group.concurrency_peak == 3


@pytest.mark.slow
@pytest.mark.parametrize(("drain", "cut"), [(True, 0), (False, 1)])
def test_duration_stops_sending_and_may_cut_what_is_open(drain, cut):
    with stub_server(stream(*[frame(token("a"))] * 5, DONE, gap=0.2)) as stub:
        client = run(
            stub.url,
            [Call(f"r{i}", "hi", 5) for i in range(50)],
            max_concurrency=1,
            duration_s=1.8,
            drain=drain,
        )
    records = list(client.trace.requests.values())
    assert 1 <= len(records) <= 3
    cancelled = [r for r in records if r.outcome == "cancelled"]
    assert [r.reason for r in cancelled] == ["run_ended"] * cut


def test_an_interrupted_run_keeps_what_it_measured():
    async def interrupted(url):
        client = LoadClient(Endpoint(url, "m"))
        calls = [Call(f"r{i}", "hi", 5) for i in range(20)]
        task = asyncio.create_task(client.run(calls, max_concurrency=1))
        while {"completed", "in_flight"} - {r.outcome for r in client.trace.requests.values()}:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing goes on behind it"
        return client

    with stub_server(stream(*[frame(token("a"))] * 3, DONE, gap=0.05)) as stub:
        client = asyncio.run(interrupted(stub.url))
    counts = summarize(client.trace).all.counts
    assert counts.completed >= 1
    assert counts.in_flight_at_end == 1
    assert client.trace.meta["submitted"] == counts.submitted
    assert [r.reason for r in client.trace.requests.values()][-1] == "interrupted"


# -- secrets and strangers -----------------------------------------------------------------


def test_the_key_is_sent_and_appears_nowhere_else():
    body = json.dumps({"error": {"message": f"bad key {KEY}"}}).encode()
    head = f"HTTP/1.1 400 Bad\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with stub_server([head + body]) as stub:
        endpoint = Endpoint(stub.url, "m", api_key=KEY)
        client = run(stub.url, endpoint=endpoint)
    assert f"Bearer {KEY}".encode() in stub.requests[0]
    assert KEY not in "".join(client.trace.jsonl_lines()) + repr(endpoint) + str(endpoint)
    assert client.trace.requests["r0"].reason == "HTTP 400: bad key ***"


def test_a_redirect_is_not_followed_so_the_key_stays_home():
    with stub_server([]) as other:
        head = (
            f"HTTP/1.1 307 Go\r\nLocation: {other.url}/v1/completions\r\nContent-Length: 0\r\n\r\n"
        )
        with stub_server([head.encode()]) as stub:
            client = run(stub.url, endpoint=Endpoint(stub.url, "m", api_key=KEY))
        assert other.requests == []
    record = client.trace.requests["r0"]
    assert record.outcome == "failed"
    assert f"redirected to {other.url}" in record.reason


def test_token_ids_and_messages_go_out_as_given():
    with stub_server(stream(frame(token("a")), DONE)) as stub:
        run(stub.url, [Call("r0", [1, 2, 3], 4, body={"min_tokens": 4})])
        run(stub.url, [Call("r1", [{"role": "user", "content": "hi"}], 4)], api="chat")
        run(stub.url, [Call("r2", "hi", 4)], api="chat")
    bodies = [json.loads(request.partition(b"\r\n\r\n")[2]) for request in stub.requests]
    assert bodies[0]["prompt"] == [1, 2, 3]
    assert bodies[0]["min_tokens"] == 4
    assert bodies[1]["messages"] == bodies[2]["messages"] == [{"role": "user", "content": "hi"}]
    assert stub.requests[1].startswith(b"POST /v1/chat/completions ")


def test_a_base_url_that_cannot_be_right_is_refused():
    more = ("http://h:99999", "http://h:port", "http://h:0", "http://[::1")
    for url in ("127.0.0.1:8000", "ftp://x", "http://", "http://u:p@h", "http://h?k=1", *more):
        with pytest.raises(ValueError, match="base_url"):
            Endpoint(url, "m")


def test_base_url_may_end_in_v1():
    assert Endpoint("http://h/v1", "m").url == Endpoint("http://h", "m").url


def test_the_trace_survives_the_file(tmp_path):
    _, client = one(stream(frame(token("a")), FINISH, DONE))
    client.trace.write_jsonl(tmp_path / "t.jsonl")
    assert type(client.trace).read_jsonl(tmp_path / "t.jsonl").requests == client.trace.requests


def test_tokens_without_any_text_are_counted_by_their_ids():
    reader = AnswerReader()
    reader.take(json.dumps(token("", token_ids=[2], finish_reason="stop")), 7)
    assert reader.k_source() == "token_ids"
    assert [(event.t, event.k) for event in reader.events()] == [(7, 1)]


def test_a_reader_without_a_single_token_has_no_events():
    reader = AnswerReader()
    reader.take(json.dumps({"choices": [], "usage": usage(3)}), 1)
    assert (reader.events(), reader.k_source()) == ([], "none")


def test_sleeping_is_on_the_clock_of_the_stamps():
    before = time.perf_counter_ns()
    record, _ = one(stream(frame(token("a")), DONE))
    assert before < record.t_send < record.t_end < time.perf_counter_ns()

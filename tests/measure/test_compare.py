"""When two runs may be compared, and what is said when they may and when they may not."""

from __future__ import annotations

import pytest

from llmlab.measure.compare import compare
from llmlab.measure.limits import Limits
from llmlab.trace import RequestRecord, TokenEvent, Trace
from tests.measure.traces import MS

LIMITS = {"chat": Limits(ttft_ms=700, gap_ms=50), "document": Limits(ttft_ms=2000)}
CLOSED = {"kind": "closed", "concurrency": 8}
OUTPUT = {"chat": 32, "document": 16}
PROMPT = {"chat": 64, "document": 1024}


def trial(chat_ttft, chat_gap, document_ttft, rate, *, n=100, arrivals=CLOSED, **config) -> Trace:
    """A run of n chats and n documents in which every latency of a class is the same.

    Sends are spread so that the last token ends a window of exactly tokens / rate seconds.
    """
    length = n * sum(OUTPUT.values()) / rate * 1e3
    trace = Trace(meta={"workload": {"arrivals": arrivals}, "config": config})
    for i in range(2 * n):
        name, ttft, gap = (
            ("document", document_ttft, 20) if i % 2 else ("chat", chat_ttft, chat_gap)
        )
        lasts = ttft + gap * (OUTPUT[name] - 1)
        send = (length - lasts) * (i / (2 * n - 1))
        events = [TokenEvent(round((send + ttft + gap * j) * MS)) for j in range(OUTPUT[name])]
        trace.requests[f"r{i}"] = RequestRecord(
            f"r{i}",
            name,
            PROMPT[name],
            t_sched=round(send * MS),
            t_send=round(send * MS),
            events=events,
            completion_tokens=OUTPUT[name],
            outcome="completed",
            t_end=events[-1].t,
        )
    return trace


BASELINE = (500, 35, 1900, 900)
LARGER = (900, 70, 1500, 1080)
CHUNKS = (550, 40, 1750, 1010)


def test_a_larger_prompt_batch_gains_a_fifth_and_fails_both_chat_limits():
    seen = compare(trial(*BASELINE), trial(*LARGER), LIMITS, names=("baseline", "larger batch"))
    assert seen.comparable
    assert seen.passes is False
    assert seen.gain == pytest.approx(20.0)
    missed = [(c.class_name, c.figure) for c in seen.checks if not c.trial_holds]
    assert missed == [("chat", "TTFT p95"), ("chat", "gap p95")]
    assert seen.verdict == (
        "larger batch fails with +20.0 % output tokens/s: "
        "chat TTFT p95 900 > 700 ms, chat gap p95 70 > 50 ms."
    )
    assert seen.decision == (
        "For the stated mix and targets, test the same workload with smaller prompt chunks next "
        "because prompt work delays the decode steps of chat."
    )


def test_bounded_prompt_chunks_gain_an_eighth_and_meet_every_limit():
    old, new = (
        trial(*run, max_num_batched_tokens=t) for run, t in ((BASELINE, 8192), (CHUNKS, 512))
    )
    seen = compare(old, new, LIMITS, names=("baseline", "chunks"))
    assert seen.passes is True
    assert seen.gain == pytest.approx(12.2, abs=0.05)
    assert seen.verdict == "chunks meets every limit with +12.2 % output tokens/s."
    assert seen.changes == [("max_num_batched_tokens", 8192, 512)]
    assert seen.decision == (
        "For the stated mix and targets, test chunks (max_num_batched_tokens 8192 → 512) under a "
        "burst of the same mix next because it meets every limit with +12.2 % output tokens/s."
    )
    table = {row[0]: row[1:] for row in seen.rows()}
    assert table["chat: TTFT p95, ms"] == ("500", "550", "+10.0 %", "700 holds")
    assert table["chat: gap p95, ms"] == ("35", "40", "+14.3 %", "50 holds")
    assert table["document: TTFT p95, ms"] == ("1,900", "1,750", "-7.9 %", "2,000 holds")
    assert table["Output rate, tok/s"][:3] == ("900", "1,010", "+12.2 %")


def test_the_decision_says_what_the_runs_do_not_show():
    few = compare(trial(*BASELINE, n=80), trial(*CHUNKS, n=80), LIMITS)
    text = "\n".join(few.not_shown)
    for words in ("p99", "cold model", "losing a replica", "run-to-run"):
        assert words in text
    many = compare(trial(*BASELINE, n=100), trial(*CHUNKS, n=100), LIMITS)
    assert "p99" not in "\n".join(many.not_shown)
    assert all(line in many.to_markdown() for line in many.not_shown)


def test_a_limit_reached_exactly_is_kept():
    seen = compare(trial(*BASELINE), trial(700, 50, 2000, 950), LIMITS)
    assert seen.passes is True


def test_equal_runs_gain_nothing_and_the_sentence_says_so():
    seen = compare(trial(*BASELINE), trial(*BASELINE), LIMITS)
    assert seen.gain == 0
    assert "one setting differs" in seen.decision
    seen = compare(trial(*BASELINE), trial(*BASELINE, max_num_seqs=8), LIMITS)
    assert "another setting than trial (max_num_seqs None → 8)" in seen.decision
    assert "gains nothing" in seen.decision


def test_without_limits_there_is_no_verdict():
    seen = compare(trial(*BASELINE), trial(*LARGER))
    assert seen.comparable
    assert seen.passes is None
    assert seen.verdict.startswith("No limits were stated, so no verdict")


def reasons(change, **more):
    a, b = trial(*BASELINE, **more), trial(*LARGER, **more)
    change(b)
    seen = compare(a, b, LIMITS)
    assert not seen.comparable
    assert seen.passes is None
    assert seen.verdict == "No verdict: the runs did not answer the same question."
    assert seen.gain is None
    assert all(reason in seen.to_markdown() for reason in seen.reasons)
    return seen.reasons


def shorten_chat_answers(trace):
    for record in trace.requests.values():
        if record.class_name == "chat":
            del record.events[16:]
            record.completion_tokens, record.t_end = 16, record.events[-1].t


def test_shorter_answers_are_no_speed_up():
    (reason,) = reasons(shorten_chat_answers)
    assert reason == "output lengths of class chat: mean 32 against 16 tokens, 50 % apart"


def test_equal_means_of_unequal_lengths_are_not_equal_lengths():
    def half_short_half_long(trace):
        for i, record in enumerate(trace.requests.values()):
            record.prompt_tokens += 20 if i % 4 < 2 else -20

    found = reasons(half_short_half_long)
    assert found[0].startswith("prompt lengths of class chat: mean 64 against 64 tokens")


def test_early_cancellations_are_no_speed_up():
    def cancel_some(trace):
        for i, record in enumerate(trace.requests.values()):
            if i in (1, 3, 5):
                record.outcome, record.reason = "cancelled", "scripted"

    assert reasons(cancel_some) == ["completed set of class document: 100 of 100 against 97 of 100"]


def test_as_many_but_other_requests_completed():
    a, b = trial(*BASELINE), trial(*LARGER)
    a.requests["r0"].outcome = b.requests["r2"].outcome = "failed"
    (reason,) = compare(a, b, LIMITS).reasons
    assert reason == (
        "completed set of class chat: 99 of 100 against 99 of 100, but not the same ones"
    )


def test_fewer_chats_sent_is_said():
    def drop(trace):
        for i in range(0, 8, 2):
            del trace.requests[f"r{i}"]

    assert reasons(drop)[0] == "requests of class chat: 100 against 96"


def test_another_closed_loop_is_another_load():
    def fewer(trace):
        trace.meta["workload"] = {"arrivals": {"kind": "closed", "concurrency": 4}}

    (reason,) = reasons(fewer)
    assert reason == "arrivals: kind closed concurrency 8 against kind closed concurrency 4"


def test_an_open_loop_must_have_the_same_schedule():
    # The two trials were built with other send times; only a closed loop may have that.
    found = reasons(lambda trace: None, arrivals={"kind": "poisson", "request_rate": 4})
    assert len(found) == 1
    assert found[0].startswith("arrivals: intended send times differ by up to")


def test_a_simulation_is_not_compared_with_a_measurement():
    def simulate(trace):
        trace.meta["simulated"] = True

    assert reasons(simulate) == ["clock: one run is simulated, the other was measured"]


def test_other_classes_are_other_questions():
    def rename(trace):
        for record in trace.requests.values():
            record.class_name = record.class_name.replace("document", "code")

    assert reasons(rename) == ["classes: chat, document in the baseline, chat, code in the trial"]


def test_small_natural_differences_of_length_are_allowed_up_to_the_tolerance():
    a, b = trial(*BASELINE), trial(*CHUNKS)
    last = b.requests["r0"]
    last.events.pop()
    last.completion_tokens, last.t_end = 31, last.events[-1].t
    assert compare(a, b, LIMITS).comparable
    assert not compare(a, b, LIMITS, length_tolerance=0.0).comparable

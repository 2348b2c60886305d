"""Laws of a run, on an engine whose every step takes 10 ms of a virtual clock."""

from __future__ import annotations

import threading

import pytest

from llmlab.measure.metrics import request_metrics, summarize
from llmlab.measure.run import run_workload
from llmlab.measure.workload import parse_workload
from tests.measure.fake_engine import FakeEngine

MS = 1_000_000


def workload(arrivals, n=6, output_tokens=4, prompt_tokens=8, **more):
    classes = [{"name": "chat", "prompt_tokens": prompt_tokens, "output_tokens": output_tokens}]
    data = {"name": "w", "classes": classes, "arrivals": arrivals, "stop": {"num_prompts": n}}
    return parse_workload(data | more)


def run(engine, plan, **more):
    return run_workload(engine, plan, sleep=engine.sleep, **more)


CLOSED_TWO = {"kind": "closed", "concurrency": 2}
CLOSED_FIVE = {"kind": "closed", "concurrency": 5}


def test_a_closed_loop_keeps_its_concurrency_and_no_more():
    engine = FakeEngine()
    trace = run(engine, workload(CLOSED_TWO, n=6))
    summary = summarize(trace)
    assert summary.all.counts.completed == 6
    assert summary.all.concurrency_peak == 2
    assert summary.all.concurrency_mean == 2
    # Three rounds of four 10 ms steps.
    assert trace.steps[-1].t_end == 120 * MS
    assert {m.dispatch_delay for m in summary.requests} == {0}
    assert summary.all.rates.offered_req_s is None  # the answers set the rate, nobody offers one
    assert summary.all.rates.realized_req_s is not None


def test_an_open_loop_sends_on_time_whatever_the_server_does():
    engine = FakeEngine(seats=1)
    trace = run(engine, workload({"kind": "constant", "request_rate": 50}, n=4))
    records = list(trace.requests.values())
    assert [r.t_sched for r in records] == [0, 20 * MS, 40 * MS, 60 * MS]
    assert [r.t_send for r in records] == [0, 20 * MS, 40 * MS, 60 * MS]
    ttft = [request_metrics(r).ttft_from_schedule for r in records]
    assert ttft == [10, 30, 50, 70]  # one seat: each waits for those before it


def test_a_request_due_during_a_step_is_late_and_the_schedule_shows_it():
    engine = FakeEngine(step_ns=100 * MS)
    trace = run(engine, workload({"kind": "constant", "request_rate": 40}, n=2, output_tokens=2))
    late = request_metrics(list(trace.requests.values())[1])
    assert late.dispatch_delay == 75  # due at 25 ms, the step ends at 100 ms
    assert (late.ttft, late.ttft_from_schedule) == (100, 175)


def test_every_request_asks_for_its_own_length_and_prompt():
    engine = FakeEngine()
    plan = workload(CLOSED_TWO, output_tokens={"kind": "uniform", "low": 1, "high": 9})
    trace = run(engine, plan)
    for planned, record in zip(plan.requests(), trace.requests.values(), strict=True):
        assert record.completion_tokens == planned.output_tokens
        assert engine.prompts[record.request_id] == planned.prompt_token_ids(100)


def test_a_client_leaves_after_its_tokens_or_its_time():
    rules = [{"share": 0.5, "after_tokens": 2}, {"share": 0.5, "after_s": 0.015}]
    trace = run(FakeEngine(), workload(CLOSED_TWO, n=4, cancellations=rules))
    records = list(trace.requests.values())
    assert {(r.outcome, r.reason) for r in records} == {("cancelled", "scripted")}
    assert {len(r.events) for r in records} == {2}


def test_a_request_that_ends_with_its_last_wanted_token_is_completed():
    rules = [{"share": 1.0, "after_tokens": 4}]
    trace = run(FakeEngine(), workload(CLOSED_TWO, cancellations=rules))
    assert summarize(trace).all.counts.completed == 6


def test_a_refused_request_is_in_the_books_and_the_run_goes_on():
    plan = workload(CLOSED_TWO, n=4, prompt_tokens={"kind": "list", "values": [8, 99]})
    trace = run(FakeEngine(longest=50), plan)
    counts = summarize(trace).all.counts
    assert (counts.submitted, counts.completed, counts.rejected) == (4, 2, 2)


def test_the_stop_event_ends_the_run_and_nothing_is_lost():
    stop = threading.Event()
    engine = FakeEngine()
    plan = workload({"kind": "constant", "request_rate": 1000}, n=100)
    trace = run(engine, plan, stop=stop, progress=lambda over, planned: stop.set())
    counts = summarize(trace).all.counts
    assert counts.completed >= 1
    assert counts.cancelled >= 1
    assert {r.reason for r in trace.requests.values() if r.outcome == "cancelled"} == {"run_ended"}
    assert not engine.has_work
    # Those already due but not yet handed over were submitted too.
    due = sum(request.t_sched_ns <= engine.now for request in plan.requests())
    assert counts.submitted == due == counts.admitted + counts.cancelled_before_send
    assert counts.cancelled_before_send == 10  # what fell due during the last step of 10 ms


def test_a_cut_at_the_duration_cancels_what_is_in_flight():
    stop = {"num_prompts": 100, "duration_s": 0.05, "drain": False}
    engine = FakeEngine(seats=1)
    trace = run(engine, workload(CLOSED_TWO, stop=stop))
    counts = summarize(trace).all.counts
    assert (counts.completed, counts.cancelled) == (1, 2)
    assert not engine.has_work


def test_a_duration_with_drain_lets_what_is_in_flight_finish():
    stop = {"num_prompts": 100, "duration_s": 0.05}
    trace = run(FakeEngine(), workload(CLOSED_TWO, stop=stop))
    counts = summarize(trace).all.counts
    assert (counts.completed, counts.submitted) == (4, 4)


def test_two_runs_on_one_engine_are_two_traces():
    engine = FakeEngine()
    one = run(engine, workload(CLOSED_TWO))
    two = run(engine, workload(CLOSED_TWO))
    assert not set(one.requests) & set(two.requests)
    assert len(one.requests) == len(two.requests) == 6
    assert two.steps[0].t_start >= one.steps[-1].t_end
    assert len(one.steps) + len(two.steps) == len(engine.trace.steps)


def test_warm_up_requests_have_prompts_of_their_own_and_stay_out_of_the_trace():
    engine = FakeEngine()
    plan = workload(CLOSED_TWO)
    trace = run(engine, plan, num_warmups=2)
    warm = [engine.prompts[name] for name in engine.trace.requests if name not in trace.requests]
    assert len(warm) == 2
    assert len(trace.requests) == 6
    assert not [p for p in warm if p in [r.prompt_token_ids(100) for r in plan.requests()]]
    assert min(r.t_send for r in trace.requests.values()) == trace.meta["t_start"] > 0


def test_progress_counts_up_to_the_plan():
    seen = []
    run(FakeEngine(), workload(CLOSED_TWO), progress=lambda over, planned: seen.append(over))
    assert seen == [1, 2, 3, 4, 5, 6]


def test_ctrl_c_leaves_no_request_behind():
    engine = FakeEngine()

    def interrupt(over, planned):
        raise KeyboardInterrupt

    rules = [{"share": 1.0, "after_tokens": 1}]
    with pytest.raises(KeyboardInterrupt):
        run(engine, workload(CLOSED_FIVE, cancellations=rules), progress=interrupt)
    assert not engine.has_work


def test_a_scheduler_that_plans_nothing_is_reported_instead_of_waited_for():
    engine = FakeEngine()
    engine.stuck = True
    with pytest.raises(RuntimeError, match=r"planned nothing in 1000 steps in a row while 2 req"):
        run(engine, workload(CLOSED_TWO))


def test_a_run_can_be_saved_and_read_back(tmp_path):
    trace = run(FakeEngine(), workload({"kind": "poisson", "request_rate": float("inf")}))
    trace.write_jsonl(tmp_path / "t.jsonl")
    again = type(trace).read_jsonl(tmp_path / "t.jsonl")
    assert summarize(again).to_dict()["all"] == summarize(trace).to_dict()["all"]

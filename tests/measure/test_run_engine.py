"""A workload on the real engine with the tiny model: the books, the lengths, the blocks."""

from __future__ import annotations

import pytest

from llmlab.chrome_trace import to_chrome
from llmlab.config import EngineConfig
from llmlab.engine import Engine, load_model
from llmlab.measure.compare import compare
from llmlab.measure.metrics import summarize
from llmlab.measure.run import run_workload
from llmlab.measure.workload import parse_workload

CONFIG = EngineConfig(max_num_batched_tokens=64, max_num_seqs=8, num_blocks=64, max_model_len=256)


@pytest.fixture(scope="module")
def model():
    return load_model("tiny")


def workload(**more):
    classes = [
        {"name": "chat", "prompt_tokens": 8, "output_tokens": 6, "limits": {"ttft_ms": 60_000}},
        {
            "name": "document",
            "prompt_tokens": {"kind": "list", "values": [100, 300]},
            "output_tokens": 3,
        },
    ]
    data = {
        "name": "w",
        "classes": classes,
        "arrivals": {"kind": "closed", "concurrency": 4},
        "stop": {"num_prompts": 12},
    }
    return parse_workload(data | more)


@pytest.mark.parametrize("overlapped", [False, True])
def test_every_figure_of_a_real_run_is_defined_and_the_books_balance(model, overlapped):
    engine = Engine(model, CONFIG, async_scheduling=overlapped)
    plan = workload()
    summary = summarize(run_workload(engine, plan), limits=plan.limits)
    chat, document = summary["chat"], summary["document"]
    assert chat.counts.completed == 6
    # Every other document is longer than the model allows: refused, said, and in the books.
    assert (document.counts.completed, document.counts.rejected) == (3, 3)
    assert (chat.output_len.min, chat.output_len.max) == (6, 6)
    assert summary.all.rates.output_tokens == 6 * 6 + 3 * 3
    for name in ("queue", "prefill", "ttft", "tpot", "itl", "e2e", "stream_rate"):
        assert chat[name].n > 0
        assert chat[name].undefined == 0
    assert chat["itl"].n == 6 * 5
    assert chat.attainment == 1.0
    assert summary.all.concurrency_peak <= 4
    # At least the longest prompt and answer but its last token, at most the whole pool.
    assert 102 <= summary.max_resident_kv_tokens <= CONFIG.num_blocks * CONFIG.block_size
    assert engine.scheduler.num_blocks_used == 0


@pytest.mark.parametrize("overlapped", [False, True])
def test_cancelled_clients_leave_no_block_behind(model, overlapped):
    engine = Engine(model, CONFIG, async_scheduling=overlapped)
    rules = [{"share": 0.5, "class_name": "chat", "after_tokens": 2}]
    trace = run_workload(engine, workload(cancellations=rules))
    cancelled = [r for r in trace.requests.values() if r.outcome == "cancelled"]
    assert [(r.completion_tokens, len(r.events), r.reason) for r in cancelled] == [
        (2, 2, "scripted")
    ] * 3
    assert engine.scheduler.num_blocks_used == 0
    assert not engine.has_work


def test_a_run_cut_by_time_lands_the_step_that_is_under_way(model):
    engine = Engine(model, CONFIG, async_scheduling=True)
    stop = {"num_prompts": 500, "duration_s": 0.05, "drain": False}
    trace = run_workload(engine, workload(stop=stop))
    assert not engine.has_work
    assert trace.steps[-1] is engine.trace.steps[-1]
    assert summarize(trace).all.counts.cancelled > 0
    to_chrome(trace)


def test_an_open_loop_on_a_wall_clock_never_sends_early(model):
    engine = Engine(model, CONFIG)
    arrivals = {"kind": "poisson", "request_rate": 200}
    trace = run_workload(engine, workload(arrivals=arrivals))
    for record in trace.requests.values():
        assert record.t_send >= record.t_sched
    planned = workload(arrivals=arrivals).requests()
    start = trace.meta["t_start"]
    assert [r.t_sched - start for r in trace.requests.values()] == [p.t_sched_ns for p in planned]


def test_one_changed_knob_is_a_fair_comparison_and_is_named(model):
    runs = [
        run_workload(
            Engine(model, CONFIG.with_(max_num_batched_tokens=t)), workload(), num_warmups=1
        )
        for t in (64, 16)
    ]
    seen = compare(*runs, workload().limits)
    assert seen.reasons == []
    assert seen.changes == [("max_num_batched_tokens", 64, 16)]
    assert seen.passes is True


def test_overlap_is_a_knob_too(model):
    engines = [Engine(model, CONFIG, async_scheduling=on) for on in (False, True)]
    seen = compare(*[run_workload(engine, workload()) for engine in engines])
    assert seen.changes == [("async_scheduling", None, True)]


def test_other_arrivals_on_the_engine_are_refused(model):
    plans = [workload(arrivals={"kind": "closed", "concurrency": c}) for c in (2, 4)]
    seen = compare(*[run_workload(Engine(model, CONFIG), plan) for plan in plans])
    assert [reason.partition(":")[0] for reason in seen.reasons] == ["arrivals"]

"""Laws of the simulator, seen from outside: the trace it returns."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmlab.config import EngineConfig
from llmlab.measure.metrics import summarize
from llmlab.perf.hardware import Hardware
from llmlab.sched.chunked import Chunked
from llmlab.sched.continuous import Continuous
from llmlab.sched.static import Static
from llmlab.sim.load import Arrival, ClosedLoop, poisson_arrivals
from llmlab.sim.simulate import deploy, simulate
from llmlab.sim.simulator import Simulator
from llmlab.sim.step_time import Constants, FixedStepTime
from llmlab.trace import Trace

POLICIES = {"chunked": Chunked, "continuous": Continuous, "static": Static}
SMALL = EngineConfig(
    max_num_batched_tokens=64, max_num_seqs=6, block_size=4, num_blocks=40, max_model_len=64
)
PLACE = {"model": "llama-3.1-8b", "hardware": "h100-sxm"}
MIX = [("chat", 256, 32), ("document", 4096, 16)]


def run(load, policy="chunked", config=SMALL, **options):
    """A trace whose step times come from a real cost model, so that they differ by step."""
    clock = deploy(**PLACE).step_time
    clock.constants = options.pop("constants", Constants(preprocess=0.0))
    return Simulator(POLICIES[policy](config), clock, **options).run(load)


def same(a: Trace, b: Trace) -> bool:
    return a.requests == b.requests and a.steps == b.steps


arrivals = st.builds(
    Arrival,
    st.integers(0, 200_000_000),
    st.integers(1, 30),
    st.integers(1, 34),
    cancel_after_ns=st.none() | st.integers(1, 300_000_000),
    cancel_after_tokens=st.none() | st.integers(1, 10),
)


@given(
    st.lists(arrivals, min_size=1, max_size=14),
    st.sampled_from(sorted(POLICIES)),
    st.sampled_from([0.0, 0.004]),
    st.sampled_from([17, 40]),
    st.booleans(),
)
@settings(deadline=None, max_examples=150)
def test_many_steps_at_once_give_the_trace_of_the_plain_loop(load, policy, delay, blocks, cache):
    config = SMALL.with_(num_blocks=blocks, enable_prefix_caching=cache)
    constants = Constants(preprocess=delay / 2, network=delay)
    plain = run(load, policy, config, leap=False, constants=constants)
    fast = run(load, policy, config, leap=True, constants=constants)
    assert same(plain, fast)


def test_many_steps_at_once_give_the_plain_trace_of_a_long_mixed_run():
    load = poisson_arrivals(8.0, 40, MIX, seed=3)
    config = SMALL.with_(num_blocks=2000, max_num_seqs=32, max_model_len=8192, block_size=16)
    config = config.with_(max_num_batched_tokens=512)
    plain, fast = (run(load, config=config, leap=leap) for leap in (False, True))
    assert same(plain, fast)
    assert sum(1 for step in fast.steps if step.prefill_tokens) < len(fast.steps) / 2


def test_without_step_records_the_requests_are_the_same():
    load = poisson_arrivals(8.0, 20, MIX, seed=1)
    full = simulate(load, **PLACE)
    bare = simulate(load, **PLACE, record_steps=False)
    assert bare.requests == full.requests
    assert full.steps
    assert not bare.steps


@given(st.lists(arrivals, min_size=1, max_size=10), st.sampled_from(sorted(POLICIES)))
@settings(deadline=None, max_examples=60)
def test_time_only_moves_forward_and_every_token_is_counted(load, policy):
    trace = run(load, policy)
    ends = [0]
    for step in trace.steps:
        assert step.t_start >= ends[-1]
        assert step.t_end > step.t_start
        ends.append(step.t_end)
    for record in trace.requests.values():
        stamps = [event.t for event in record.events]
        assert stamps == sorted(set(stamps))
        assert record.completion_tokens == len(stamps)
        if record.outcome == "completed":
            assert len(stamps) == record.max_tokens
            assert record.t_send <= record.t_queued <= record.t_first_scheduled < stamps[0]
        else:
            assert record.outcome == "cancelled"
            assert len(stamps) <= record.max_tokens


def test_the_same_arguments_give_the_same_trace():
    a, b = (simulate(poisson_arrivals(6.0, 30, MIX, seed=5), **PLACE) for _ in range(2))
    assert same(a, b)
    assert a.meta == b.meta
    other = simulate(poisson_arrivals(6.0, 30, MIX, seed=6), **PLACE)
    assert other.requests != a.requests


def test_every_result_says_that_it_is_simulated():
    trace = simulate([(0, 10, 3)], **PLACE)
    assert trace.simulated
    assert "simulated" in trace.meta["note"]
    assert trace.meta["hardware"] == "h100-sxm"
    assert trace.meta["config"]["max_num_batched_tokens"] == 2048


def test_a_trace_survives_being_written_and_read(tmp_path):
    trace = simulate([(0, 300, 5, "chat"), (1_000_000, 50, 2, "other")], **PLACE)
    trace.write_jsonl(tmp_path / "run.jsonl")
    again = Trace.read_jsonl(tmp_path / "run.jsonl")
    assert same(again, trace)


def test_time_to_first_token_is_network_front_end_queue_and_first_step():
    constants = Constants(
        network=0.010, preprocess=0.003, preprocess_per_token=1e-5, step_overhead=0.002
    )
    trace = simulate([(1_000_000, 100, 2)], **PLACE, constants=constants)
    (record,) = trace.requests.values()
    (first, _) = trace.steps
    assert record.t_queued == 1_000_000 + 10_000_000 + 3_000_000 + 1_000_000
    assert record.t_first_scheduled == record.t_queued == first.t_start
    assert record.events[0].t == first.t_end + 10_000_000
    assert record.t_end == record.events[-1].t


def test_the_front_end_takes_one_request_at_a_time():
    constants = Constants(preprocess=0.004)
    trace = simulate([(0, 10, 2)] * 3, **PLACE, constants=constants)
    queued = [record.t_queued for record in trace.requests.values()]
    assert queued == [4_000_000, 8_000_000, 12_000_000]


def test_a_closed_loop_keeps_its_users_busy_and_never_more():
    load = ClosedLoop(users=4, requests=20, prompt_tokens=50, output_tokens=10, think_ns=1000)
    summary = summarize(simulate(load, **PLACE))
    assert summary.all.counts.completed == 20
    assert summary.all.concurrency_peak == 4
    sent = sorted(r.t_send for r in simulate(load, **PLACE).requests.values())
    assert sent[:4] == [0, 0, 0, 0]
    assert sent[4] > 0


def test_a_client_that_leaves_frees_its_place_and_gets_no_more_tokens():
    config = SMALL.with_(max_num_seqs=1)
    stays, leaves = Arrival(0, 8, 30, cancel_after_tokens=5), Arrival(0, 8, 3)
    trace = Simulator(Chunked(config), FixedStepTime(1000)).run([stays, leaves])
    left, served = trace.requests.values()
    assert left.outcome == "cancelled"
    assert left.reason == "client_left"
    assert [event.t for event in left.events] == [1000, 2000, 3000, 4000, 5000]
    assert left.t_end == 5000
    assert served.t_first_scheduled == 5000
    assert served.outcome == "completed"


def test_a_client_that_leaves_during_its_last_step_did_not_get_its_answer():
    config = SMALL.with_(max_num_seqs=1)
    load = [Arrival(0, 8, 3, cancel_after_ns=2500), Arrival(0, 8, 1)]
    left, served = Simulator(Chunked(config), FixedStepTime(1000)).run(load).requests.values()
    assert left.outcome == "cancelled"
    assert [event.t for event in left.events] == [1000, 2000]
    assert left.t_end == 2500
    assert served.t_first_scheduled == 3000


def test_a_client_may_leave_before_its_request_reaches_the_scheduler():
    constants = Constants(preprocess=0.005)
    trace = run(
        [Arrival(0, 8, 3, cancel_after_ns=1_000_000), Arrival(0, 8, 3)], constants=constants
    )
    gone, served = trace.requests.values()
    assert (gone.outcome, gone.events, gone.t_queued) == ("cancelled", [], None)
    assert served.outcome == "completed"
    assert summarize(trace).all.counts.cancelled == 1


def test_what_can_never_run_is_rejected_with_the_schedulers_reason():
    trace = run([(0, 500, 2), (0, 8, 3)])
    refused, served = trace.requests.values()
    assert refused.outcome == "rejected"
    assert refused.reason
    assert served.outcome == "completed"
    counts = summarize(trace).all.counts
    assert (counts.rejected, counts.completed) == (1, 1)


def test_a_full_pool_preempts_and_still_finishes_everyone():
    config = SMALL.with_(num_blocks=17)
    trace = run([(0, 16, 30)] * 5, config=config)
    assert any(record.preemptions for record in trace.requests.values())
    for record in trace.requests.values():
        assert record.outcome == "completed"
        assert all(back is not None and back >= out for out, back in record.preemptions)


def test_a_shared_prefix_is_found_only_where_prompts_share_it():
    config = SMALL.with_(enable_prefix_caching=True)
    ids = tuple(range(16))
    apart = run([(0, 16, 2), (10**9, 16, 2)], config=config)
    shared = run(
        [Arrival(t, 16, 2, prompt_token_ids=ids) for t in (0, 10**9)],
        config=config,
    )
    assert [r.cached_tokens for r in apart.requests.values()] == [0, 0]
    assert [r.cached_tokens for r in shared.requests.values()] == [0, 12]


def test_metrics_read_a_simulated_trace():
    summary = summarize(simulate(poisson_arrivals(4.0, 40, MIX, seed=0), **PLACE))
    assert set(summary.classes) == {"chat", "document"}
    ttft = {
        name: group.latencies["ttft"].percentiles["p50"] for name, group in summary.classes.items()
    }
    assert ttft["document"] > ttft["chat"]


def test_a_learners_own_scheduler_class_can_be_simulated():
    class Mine(Chunked):
        pass

    trace = simulate([(0, 10, 3)], **PLACE, policy=Mine)
    assert trace.meta["policy"] == "Mine"


BAD = [
    ([], "empty"),
    ([(0, 0, 1)], "prompt_tokens = 0"),
    ([(0, 5, 0)], "output_tokens = 0"),
    ([(-1, 5, 1)], "t = -1"),
    ([(float("nan"), 5, 1)], "t = nan"),
    ([(float("inf"), 5, 1)], "t = inf"),
    ([(0.5, 5, 1)], "t = 0.5"),
    ([(0, 5.5, 1)], "prompt_tokens = 5.5"),
    ([(0, True, 1)], "prompt_tokens = True"),
    ([(0,)], r"workload\[0\]"),
    ([(0, 5, 1), "x"], r"workload\[1\] = 'x'"),
]


@pytest.mark.parametrize(("rows", "says"), BAD)
def test_a_bad_workload_is_refused_with_the_row_and_the_field(rows, says):
    with pytest.raises(ValueError, match=says):
        simulate(rows, **PLACE)


def test_a_bad_rate_is_refused():
    for rate in (0, -1.0, float("nan"), float("inf"), "4"):
        with pytest.raises(ValueError, match=f"rate = {rate!r}: must be"):
            poisson_arrivals(rate, 10, MIX)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model": "lama-3.1-8b"}, "did you mean llama-3.1-8b"),
        ({"hardware": "h100-sx"}, "did you mean h100-sxm"),
        ({"policy": "chunky"}, "chunked, continuous, static"),
        ({"model": "llama-3.1-70b"}, "bytes are missing"),
        ({"tensor_parallel": 0}, "tensor_parallel = 0"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization = 1.5"),
        ({"max_num_seqs": 0}, "max_num_seqs = 0"),
        ({"num_blocks": 10**7}, "bytes are missing"),
        ({"block_size": 0}, r"EngineConfig.block_size = 0"),
        ({"block_size": "16"}, r"EngineConfig.block_size = '16'"),
        ({"config": SMALL, "max_num_seqs": 4}, "not both"),
        ({"config": SMALL.with_(num_blocks=10**7)}, "bytes are missing"),
    ],
)
def test_bad_settings_are_refused_with_what_is_allowed(change, says):
    with pytest.raises(ValueError, match=says):
        simulate([(0, 5, 1)], **{**PLACE, **change})


def test_a_model_that_does_not_fit_says_how_many_bytes_are_missing():
    with pytest.raises(ValueError, match=r"bytes are missing") as caught:
        deploy("llama-3.1-70b", "h100-sxm")
    # 141.1 GB of weights and one block of 16 tokens of 327,680 bytes, in 72 GB.
    missing = 70_553_706_496 * 2 + 16 * 327_680 - 72_000_000_000
    assert f"{missing:,}" in str(caught.value)


def test_the_pool_is_the_memory_that_is_left():
    placed = deploy("llama-3.1-8b", "h100-sxm")
    left = 80e9 * 0.9 - 8_030_261_248 * 2
    assert placed.config.num_blocks == int(left // (16 * 131_072))
    halved = deploy("llama-3.1-8b", "h100-sxm", tensor_parallel=2)
    assert halved.config.num_blocks > 2 * placed.config.num_blocks


def test_a_pool_holds_no_block_that_does_not_fit():
    room = Hardware("x", "x", {"fp16": 1e14}, 1e12, (8_030_261_248 * 2 + 20 * 131_072) / 0.9)
    assert deploy("llama-3.1-8b", room).config.num_blocks == 1
    with pytest.raises(ValueError, match=r"one KV block.*5,767,168 bytes are missing"):
        deploy("llama-3.1-8b", room, block_size=64)


def test_constants_must_be_shares_and_durations():
    for field, bad in [("compute_efficiency", 0), ("bandwidth_efficiency", 1.2), ("network", -1)]:
        with pytest.raises(ValueError, match=field):
            dataclasses.replace(Constants(), **{field: bad})
    with pytest.raises(ValueError, match="step_overhead"):
        Constants(step_overhead=float("nan"))

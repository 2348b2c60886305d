"""Laws of the simulated pools: what is moved, what is kept, and what a queue must do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llmlab.chrome_trace import to_chrome
from llmlab.config import EngineConfig
from llmlab.measure.metrics import summarize
from llmlab.perf.cost import StepShape, kv_bytes_per_token, trace_shapes
from llmlab.perf.interconnect import Interconnect
from llmlab.perf.models import load_model_config
from llmlab.sched.chunked import Chunked
from llmlab.sim.disaggregated import Disaggregated
from llmlab.sim.fleet import Replicas
from llmlab.sim.load import Arrival, ClosedLoop, poisson_arrivals
from llmlab.sim.pools import Pools, moved_summary, simulate_disaggregated, simulate_replicas
from llmlab.sim.simulate import deploy, simulate
from llmlab.sim.simulator import Simulator
from llmlab.sim.step_time import Constants, FixedStepTime
from llmlab.trace import Trace

PLACE = {"model": "llama-3.1-8b", "hardware": "a100-80gb"}
SMALL = EngineConfig(
    max_num_batched_tokens=64, max_num_seqs=6, block_size=4, num_blocks=40, max_model_len=64
)
FAST = Interconnect("fast", "fast", 1e18, 1.0, 0.0)
MS = 1_000_000


class PromptsOnly(FixedStepTime):
    """Steps that compute a prompt take the fixed time, those of one token each next to none."""

    def step_ns(self, shape: StepShape) -> int:
        return self.nanoseconds if shape.num_tokens > shape.num_requests else 1


def pair(clock, link=FAST, prefill=SMALL, decode=SMALL, split=(1, 1), **options) -> Disaggregated:
    """Small pools; a token keeps 1000 bytes, in 4 layers."""
    options = {"kv_bytes": 1000, "layers": 4, "local_below": 0, **options}
    workers = [Chunked(prefill) for _ in range(split[0])]
    return Disaggregated(workers, decode, split[1], clock, link, **options)


def real_clock() -> object:
    clock = deploy(**PLACE).step_time
    clock.constants = Constants(preprocess=0.0)
    return clock


def left_over(simulator: Disaggregated) -> list[int]:
    """Blocks still taken in each pool at the end."""
    for server in simulator.servers:
        server.scheduler.check_integrity()
    return [server.scheduler.num_blocks_used for server in simulator.servers]


# -- closed forms --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rho", "requests"),
    [(0.5, 3_000), pytest.param(0.8, 12_000, marks=pytest.mark.slow)],
)
def test_a_prefill_pool_with_equal_prompts_waits_as_an_m_d_1_queue(rho, requests):
    service = 1_000_000
    stamps = np.cumsum(np.random.default_rng(1).exponential(size=requests))
    stamps *= requests * service / rho / stamps[-1]
    one_by_one = SMALL.with_(max_num_seqs=1)
    many = SMALL.with_(num_blocks=4000, max_num_seqs=1000)
    simulator = pair(PromptsOnly(service), prefill=one_by_one, decode=many, record_steps=False)
    trace = simulator.run([Arrival(int(t), 8, 1) for t in stamps])
    waits = [r.t_first_scheduled - r.t_queued for r in trace.requests.values()]
    expected = rho / (2 * (1 - rho)) * service  # Pollaczek-Khinchine, deterministic service
    # Waits of one busy period hang together: 30 batches give the error of the mean.
    batches = np.mean(np.reshape(waits[: requests // 30 * 30], (30, -1)), axis=1)
    error = float(np.std(batches, ddof=1)) / 30**0.5
    assert abs(float(np.mean(waits)) - expected) < 4 * error
    assert error < 0.1 * expected


def test_bytes_moved_are_the_formula_times_the_prompts():
    trace = simulate_disaggregated(poisson_arrivals(4.0, 20, [("a", 700, 8)], seed=2), **PLACE)
    shape = load_model_config(PLACE["model"])
    each = 2 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim * 2
    assert each == kv_bytes_per_token(shape) == trace.meta["kv_bytes_per_token"]
    assert [move["bytes"] for move in trace.meta["moves"]] == [700 * each] * 20


def test_tensor_parallel_workers_move_the_same_bytes_over_more_links():
    load = [(0, 4000, 2)]
    one, two = (
        simulate_disaggregated(load, **PLACE, tensor_parallel=tp).meta["moves"][0] for tp in (1, 2)
    )
    assert one["bytes"] == two["bytes"]
    assert two["busy_ns"] < 0.7 * one["busy_ns"]  # the cost of a message stays


@pytest.mark.parametrize("milliseconds_a_layer", [1, 40])
def test_only_what_computing_does_not_hide_of_a_transfer_is_visible(milliseconds_a_layer):
    # 8 tokens x 1000 bytes in 4 layers: 2,000 bytes a message; a step lasts 100 ms, a layer 25.
    link = Interconnect("link", "link", 2000 / (milliseconds_a_layer / 1000), 1.0, 0.0)
    simulator = pair(PromptsOnly(100 * MS), link)
    (move,) = simulator.run([Arrival(0, 8, 2)]).meta["moves"]
    assert move["t_first_transfer"] == 25 * MS
    assert move["t_prefill_end"] == 100 * MS
    assert move["busy_ns"] == 4 * milliseconds_a_layer * MS
    # A fast link is done one message after the last layer; a slow one is still at the first ones.
    after = {1: 101 * MS, 40: (25 + 4 * 40) * MS}[milliseconds_a_layer]
    assert move["t_last_transfer"] == after
    assert move["visible_ns"] == after - 100 * MS


def test_two_prompts_share_one_way_out_and_two_workers_share_one_way_in():
    link = Interconnect("slow", "slow", 8000, 1.0, 0.0)  # a prompt of 8 tokens takes a second
    load = [Arrival(0, 8, 2), Arrival(0, 8, 2)]
    one = pair(PromptsOnly(MS), link).run(load).meta["moves"]
    two = pair(PromptsOnly(MS), link, split=(2, 1)).run(load).meta["moves"]
    by_one = SMALL.with_(max_num_seqs=1)
    out = pair(PromptsOnly(MS), link, prefill=by_one, split=(1, 2)).run(load).meta["moves"]
    for moves in (one, two, out):
        assert max(move["t_last_transfer"] for move in moves) >= 2_000 * MS
    apart = pair(PromptsOnly(MS), link, split=(2, 2)).run(load).meta["moves"]
    assert max(move["t_last_transfer"] for move in apart) < 1_010 * MS


# -- degenerate pools are the plain simulator ----------------------------------------------------


def plans(trace: Trace, worker: str | None = None) -> list[tuple]:
    kept = [s for s in trace.steps if worker is None or s.worker == worker]
    return [(s.t_start, s.t_end, s.scheduled, s.preempted, s.blocks_used) for s in kept]


LOAD = [Arrival(i * 3 * MS, 5 + 7 * i % 30, 3 + i % 20) for i in range(30)]


def test_where_every_prompt_stays_local_the_decode_worker_is_a_plain_server():
    alone = Simulator(Chunked(SMALL), real_clock()).run(LOAD)
    trace = pair(real_clock(), local_below=1000).run(LOAD)
    assert trace.meta["moves"] == []
    assert plans(trace) == plans(alone)
    assert trace.requests == alone.requests


def test_one_replica_is_a_plain_server():
    alone = Simulator(Chunked(SMALL), real_clock()).run(LOAD)
    trace = Replicas([Chunked(SMALL)], real_clock()).run(LOAD)
    assert plans(trace) == plans(alone)
    assert trace.requests == alone.requests


def test_a_prefill_worker_plans_as_a_plain_server_of_one_token_answers():
    load = [Arrival(i * 5 * MS, 5 + 7 * i % 30, 1) for i in range(30)]
    wide = SMALL.with_(num_blocks=4000)
    alone = Simulator(Chunked(SMALL), PromptsOnly(3 * MS)).run(load)
    trace = pair(PromptsOnly(3 * MS), decode=wide.with_(max_num_seqs=100)).run(load)
    kept = [s.scheduled for s in trace.steps if s.worker == "prefill 0"]
    assert kept == [s.scheduled for s in alone.steps]


# -- conservation --------------------------------------------------------------------------------

arrivals = st.builds(
    Arrival,
    st.integers(0, 200_000_000),
    st.integers(1, 30),
    st.integers(1, 30),
    cancel_after_ns=st.none() | st.integers(1, 300_000_000),
    cancel_after_tokens=st.none() | st.integers(1, 10),
)
LINKS = [FAST, Interconnect("slow", "slow", 5e5, 0.8, 1e-3)]


@given(
    st.lists(arrivals, min_size=1, max_size=14),
    st.sampled_from([(1, 1), (2, 1), (1, 2)]),
    st.sampled_from(LINKS),
    st.sampled_from([17, 40]),
    st.sampled_from([0, 12]),
    st.sampled_from([10, 64]),
)
@example(
    # The last one running gives way to blocks on the move, and may come back in the same instant.
    [
        Arrival(*a)
        for a in ((1, 26, 12), (0, 10, 3), (180900478, 29, 1), (134657555, 23, 16), (1, 23, 11))
    ],
    (1, 2),
    LINKS[1],
    17,
    12,
    10,
)
@settings(deadline=None, max_examples=25)
def test_every_token_is_computed_once_moved_once_and_no_block_stays_taken(
    load, split, link, blocks, local_below, budget
):
    config = SMALL.with_(num_blocks=blocks, max_num_batched_tokens=budget)
    options = {"split": split, "prefill": config, "decode": config, "local_below": local_below}
    simulator = pair(real_clock(), link, **options)
    trace = simulator.run(load)
    assert left_over(simulator) == [0] * sum(split)
    whole = {name for name, r in trace.requests.items() if r.outcome == "completed"}
    assert all(r.outcome in ("completed", "cancelled") for r in trace.requests.values())
    for name in whole:
        record = trace.requests[name]
        stamps = [event.t for event in record.events]
        assert len(stamps) == record.max_tokens
        assert stamps == sorted(set(stamps))
    moved = {move["request_id"]: move for move in trace.meta["moves"]}
    for name in whole & set(moved):
        move, prompt = moved[name], trace.requests[name].prompt_tokens
        assert (move["tokens"], move["bytes"]) == (prompt, 1000 * prompt)
        assert move["t_asked"] < move["t_prefill_end"] <= move["t_last_transfer"]
        assert move["t_asked"] < move["t_first_transfer"] < move["t_last_transfer"]
        assert trace.requests[name].events[0].t > move["t_last_transfer"]
    assert all(trace.requests[name].prompt_tokens >= local_below for name in moved)
    work = sum(n for s in trace.steps for name, n, *_ in s.scheduled if name in whole)
    needed = sum(trace.requests[n].prompt_tokens + trace.requests[n].max_tokens - 1 for n in whole)
    again = len(whole & set(moved))  # the last position of a moved prompt is computed twice
    if any(trace.requests[name].preemptions for name in whole):
        assert work >= needed + again
    else:
        assert work == needed + again
    slow = pair(real_clock(), link, **options, leap=False).run(load)
    assert slow.requests == trace.requests
    assert plans(slow) == plans(trace)


def test_a_full_decode_pool_holds_prompts_back_and_everybody_still_ends():
    tight = SMALL.with_(num_blocks=18, max_num_seqs=3)
    simulator = pair(real_clock(), decode=tight)
    trace = simulator.run([Arrival(0, 28, 30)] * 6)
    assert all(r.outcome == "completed" for r in trace.requests.values())
    asked = sorted(move["t_asked"] for move in trace.meta["moves"])
    assert asked[:2] == [0, 0]
    first_end = min(r.t_end for r in trace.requests.values())
    assert all(t >= first_end for t in asked[3:])
    assert left_over(simulator) == [0, 0]


def test_a_prefill_worker_keeps_its_blocks_until_the_transfer_is_acknowledged():
    link = Interconnect("slow", "slow", 16_000, 1.0, 0.0)  # a prompt of 16 tokens takes a second
    small = SMALL.with_(num_blocks=4)  # one prompt at a time
    simulator = pair(PromptsOnly(MS), link, prefill=small)
    first, second = simulator.run([Arrival(0, 16, 2), Arrival(0, 16, 2)]).requests.values()
    arrived = simulator.moves[0].t_last_transfer
    assert arrived >= 1_000 * MS
    assert second.t_first_scheduled >= arrived > first.t_first_scheduled


def test_a_prompt_that_is_computed_again_is_sent_once():
    # The prefill pool holds 36 tokens, and prompts grow in it side by side, 5 tokens a step.
    tight = SMALL.with_(num_blocks=9, max_num_batched_tokens=10)
    loads = [[Arrival(0, 12, 2), Arrival(0, 30, 2), Arrival(0, 30, 2)], [Arrival(0, 20, 2)] * 6]
    for load in loads:
        simulator = pair(real_clock(), prefill=tight.with_(long_prefill_token_threshold=5))
        trace = simulator.run(load)
        assert any(s.preempted for s in trace.steps if s.worker == "prefill 0")
        assert [m["tokens"] for m in trace.meta["moves"]] == [a.prompt_tokens for a in load]


def test_blocks_under_way_are_not_given_to_others_when_their_client_leaves():
    link = Interconnect("slow", "slow", 16_000, 1.0, 0.0)  # a prompt of 16 tokens takes a second
    chunks = SMALL.with_(max_num_batched_tokens=8)
    decode = SMALL.with_(num_blocks=5)  # one prompt of 16 at a time
    load = [Arrival(0, 16, 2, cancel_after_ns=15 * MS), Arrival(0, 16, 2)]
    simulator = pair(PromptsOnly(10 * MS), link, prefill=chunks, decode=decode)
    gone, served = simulator.run(load).requests.values()
    assert (gone.outcome, served.outcome) == ("cancelled", "completed")
    # The first chunk, 8 of 16 tokens, left when its first layer was done, and took half a second.
    assert simulator.moves[1].t_asked >= 500 * MS
    assert left_over(simulator) == [0, 0]


def test_what_cannot_fit_the_prefill_workers_is_computed_where_it_decodes():
    simulator = pair(real_clock(), prefill=SMALL.with_(num_blocks=4))
    trace = simulator.run([Arrival(0, 30, 5), Arrival(0, 8, 5)])
    assert [r.outcome for r in trace.requests.values()] == ["completed"] * 2
    assert [move["request_id"] for move in trace.meta["moves"]] == ["r1"]
    assert left_over(simulator) == [0, 0]


def test_only_prompts_that_were_computed_are_said_to_have_stayed_local():
    load = [Arrival(0, 100, 2), Arrival(0, 10, 2), Arrival(0, 10**6, 2)]
    load.append(Arrival(0, 100, 2, cancel_after_ns=1))
    trace = simulate_disaggregated(load, **PLACE)
    outcomes = [r.outcome for r in trace.requests.values()]
    assert outcomes == ["completed", "completed", "rejected", "cancelled"]
    moved = moved_summary(trace)
    assert (moved["requests_moved"], moved["requests_local"]) == (1, 1)


def test_a_run_that_is_cut_off_leaves_nothing_taken():
    from llmlab.sim.load import Load

    link = Interconnect("slow", "slow", 5e4, 1.0, 0.01)
    for cut in range(0, 900, 45):
        simulator = pair(PromptsOnly(50 * MS), link)
        load = Load([Arrival(i * 40 * MS, 16, 4) for i in range(10)], cut_at=cut * MS)
        trace = simulator.run(load)
        assert left_over(simulator) == [0, 0]
        assert all(r.outcome != "in_flight" for r in trace.requests.values())


# -- both ways from outside ----------------------------------------------------------------------


def test_the_same_arguments_give_the_same_trace_and_others_do_not():
    def go(seed: int) -> Trace:
        load = poisson_arrivals(6.0, 30, [("chat", 300, 20), ("document", 3000, 10)], seed=seed)
        return simulate_disaggregated(load, **PLACE, pools="2P1D", interconnect="pcie-4")

    first, again, other = go(5), go(5), go(6)
    assert (first.requests, first.steps, first.meta) == (again.requests, again.steps, again.meta)
    assert other.requests != first.requests


def test_the_trace_names_workers_is_simulated_and_can_be_kept(tmp_path):
    trace = simulate_disaggregated([(0, 300, 5), (0, 10, 5)], **PLACE, pools="1P2D")
    assert trace.simulated
    assert trace.meta["pools"] == "1P2D"
    assert {s.worker for s in trace.steps} == {"prefill 0", "decode 0", "decode 1"}
    assert [s.index for s in trace.steps] == list(range(len(trace.steps)))
    # Each worker has its track in a Chrome trace, and knows which tokens it sampled itself.
    events = to_chrome(trace)["traceEvents"]
    named = {e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 1}
    assert named == {"decode 0 steps", "decode 1 steps", "prefill 0 steps"}
    assert sum(shape.num_sampled for shape in trace_shapes(trace)) == 5 + 5 + 1
    trace.write_jsonl(tmp_path / "run.jsonl")
    again = Trace.read_jsonl(tmp_path / "run.jsonl")
    assert (again.requests, again.steps) == (trace.requests, trace.steps)
    assert summarize(again).all.counts.completed == 2


def test_a_closed_loop_runs_through_pools_and_replicas():
    load = ClosedLoop(users=4, requests=20, prompt_tokens=200, output_tokens=10)
    for trace in (simulate_disaggregated(load, **PLACE), simulate_replicas(load, **PLACE)):
        whole = summarize(trace).all
        assert (whole.counts.completed, whole.concurrency_peak) == (20, 4)


def test_replicas_share_the_work():
    load = [Arrival(0, 100, 20)] * 8
    trace = simulate_replicas(load, **PLACE, replicas=4)
    first = [s for s in trace.steps if s.t_start == trace.steps[0].t_start]
    assert len({s.worker for s in trace.steps}) == 4
    assert len(first) <= 4
    assert max(r.t_end for r in trace.requests.values()) < max(
        r.t_end for r in simulate(load, **PLACE).requests.values()
    )


def test_a_bad_split_is_refused_with_the_form():
    for text in ("1P", "P1D", "0P1D", "1P0D", "1P1D1", "", "-1P1D", "99P1D", 7):
        with pytest.raises(ValueError, match=r"1P1D|whole number in 1\.\.64"):
            Pools.parse(text)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"interconnect": "infinband"}, "did you mean infiniband"),
        ({"hardware": "m1", "model": "qwen2.5-0.5b"}, "states none"),
        ({"enable_prefix_caching": True}, "not modelled"),
        ({"prefill_policy": "static"}, "chunked, continuous"),
        ({"local_below": -1}, "local_below = -1"),
    ],
)
def test_bad_settings_are_refused_with_what_is_allowed(change, says):
    with pytest.raises(ValueError, match=says):
        simulate_disaggregated([(0, 5, 1)], **{**PLACE, **change})

"""Asynchronous scheduling changes when the host learns of a token, and nothing else."""

from __future__ import annotations

import itertools
import math
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llmlab.config import EngineConfig
from llmlab.engine import Engine
from llmlab.engine.overlap import PLACEHOLDER, on_their_way
from llmlab.sched.chunked import Chunked
from llmlab.sched.oracle import solo
from llmlab.sched.plan import Scheduler, StepPlan
from llmlab.sched.request import Request, SamplingParams
from tests.engine.lazy import VOCAB, HistoryRunner, LazyRunner, history_model
from tests.engine.test_law5 import GREEDY, POLICIES, PROMPTS, config_of, outputs_of, seeded

configs = st.builds(
    EngineConfig,
    max_num_batched_tokens=st.integers(1, 20),
    max_num_seqs=st.integers(1, 5),
    block_size=st.integers(1, 5),
    num_blocks=st.integers(1, 12),
    max_model_len=st.integers(2, 40),
    long_prefill_token_threshold=st.sampled_from([0, 0, 4]),
    watermark=st.sampled_from([0.0, 0.0, 0.2]),
    enable_prefix_caching=st.booleans(),
    policy=st.sampled_from(["fcfs", "fcfs", "priority"]),
)
prompts = st.one_of(
    st.integers(1, 16).map(lambda n: [i * i % 7 for i in range(n)]),
    st.lists(st.integers(0, 1), min_size=1, max_size=12),
)
# (prompt, max_tokens, how many of the 97 tokens stop it, min_tokens, priority)
adds = st.tuples(
    st.just("add"), prompts, st.integers(1, 12), st.sampled_from([0, 0, 8, 30]), st.integers(0, 3)
)
aborts = st.tuples(st.just("abort"), st.integers(0, 9))
steps = st.tuples(st.just("step"), st.integers(1, 4))
stories = st.lists(st.one_of(adds, adds, steps, steps, steps, aborts), min_size=2, max_size=25)


class Story:
    """An engine on the history model, what was done to it, and what it said."""

    def __init__(self, config, policy, overlapped):
        self.engine = Engine(
            history_model(),
            config,
            POLICIES[policy],
            runner=HistoryRunner,
            async_scheduling=overlapped,
        )
        self.asked: dict[str, tuple[list[int], SamplingParams]] = {}
        self.said: dict[str, list[int]] = {}
        self.ended: dict[str, str] = {}

    def act(self, kind, *what, stops=True):
        if kind == "add":
            self.add(*what, stops=stops)
        elif kind == "abort":
            self.abort(f"r{what[0]}")
        else:
            for _ in range(what[0]):
                self.step()

    def add(self, prompt, most, stopping, least, stops=True):
        name = f"r{len(self.engine.trace.requests)}"
        ids = tuple(range(stopping)) if stops else ()
        params = SamplingParams(max_tokens=most, stop_token_ids=ids, min_tokens=min(least, most))
        try:
            self.engine.add(prompt, params, request_id=name, priority=least)
        except ValueError:
            assert "at most" in self.engine.trace.requests[name].reason  # too long for the pool
            return
        self.asked[name] = prompt, params
        self.said[name] = []

    def abort(self, name):
        was_alive = name in self.asked and name not in self.ended
        assert self.engine.abort(name) == was_alive
        if was_alive:
            self.ended[name] = "abort"

    def step(self):
        for output in self.engine.step():
            name = output.request_id
            assert name not in self.ended, "something was said after the end"
            self.said[name] += output.token_ids
            if output.finish_reason:
                self.ended[name] = output.finish_reason
        self.engine.scheduler.check_integrity()

    def finish(self):
        for _ in range(3000):
            if not self.engine.has_work:
                break
            self.step()
        assert not self.engine.has_work
        assert self.engine.scheduler.num_blocks_used == 0
        assert set(self.ended) == set(self.asked)
        return self

    def check(self):
        for name, (prompt, params) in self.asked.items():
            whole, reason = solo(prompt, params, params.max_tokens, None, VOCAB)
            record, said = self.engine.trace.requests[name], self.said[name]
            if self.ended[name] == "abort":
                assert said == whole[: len(said)]
                assert record.outcome == "cancelled"
            else:
                assert (said, self.ended[name]) == (whole, reason)
                assert record.outcome == "completed"
            assert record.finish_reason == self.ended[name]
            assert record.completion_tokens == len(record.events) == len(said)
        trace = self.engine.trace.steps
        assert [step.index for step in trace] == list(range(len(trace)))
        assert all(a.t_start <= a.t_end <= b.t_start for a, b in itertools.pairwise(trace))


@given(configs, st.sampled_from(sorted(POLICIES)), stories)
@settings(max_examples=80, deadline=None)
def test_any_story_ends_as_each_request_would_alone(config, policy, story):
    one = Story(config, policy, True)
    for act in story:
        one.act(*act)
    one.finish().check()
    assert max(one.engine.runner.queue.depths, default=0) <= 2


@given(configs, st.sampled_from(sorted(POLICIES)), stories)
@settings(max_examples=40, deadline=None)
def test_without_stop_tokens_the_plans_are_those_of_synchronous_steps(config, policy, story):
    told = []
    for overlapped in (False, True):
        one = Story(config, policy, overlapped)
        for act in story:
            one.act(*act, stops=False)
        one.finish().check()
        told.append(
            [
                (s.scheduled, s.preempted, s.blocks_used, s.num_running, s.num_waiting)
                for s in one.engine.trace.steps
            ]
        )
    assert told[0] == told[1]


def test_a_stop_token_costs_one_row_and_nothing_is_said_of_it():
    config = EngineConfig(max_num_batched_tokens=16, num_blocks=16, block_size=4, max_model_len=40)
    rows = []
    for overlapped in (False, True):
        one = Story(config, "chunked", overlapped)
        whole, _ = solo([1, 2, 3], SamplingParams(), 12, None, VOCAB)
        params = SamplingParams(max_tokens=12, stop_token_ids=(whole[4],))
        one.engine.add([1, 2, 3], params, request_id="r0")
        one.asked["r0"], one.said["r0"] = ([1, 2, 3], params), []
        one.finish().check()
        assert len(one.said["r0"]) == 5
        rows.append(sum(len(step.scheduled) for step in one.engine.trace.steps))
    assert rows == [5, 6]


def test_two_steps_are_on_the_device_at_once():
    one = Story(EngineConfig(max_num_seqs=2, max_model_len=40), "chunked", True)
    one.add([1, 2, 3], 6, 0, 0)
    assert one.engine.step() == []  # launched; its token is asked for behind the next step
    one.finish()
    assert one.engine.runner.queue.depths == [2, 2, 2, 2, 2, 1]


@pytest.mark.parametrize("moment", range(5))
def test_an_abort_at_any_moment_is_the_end(moment):
    """Before its first step, while a token is on its way, and when only its last one is."""
    one = Story(EngineConfig(max_model_len=40), "chunked", True)
    one.add([1, 2, 3], 3, 0, 0)
    for _ in range(moment):
        one.step()
    one.abort("r0")
    assert one.engine.scheduler.num_blocks_used == 0
    one.finish().check()
    assert len(one.said["r0"]) == min(3, max(0, moment - 1))
    assert one.ended["r0"] == ("length" if moment == 4 else "abort")


def test_only_the_step_that_reaches_its_last_token_is_fed_it():
    """Also one that computes a whole request again, after a preemption."""
    begun, again = Request("a", [1, 2, 3, 4, 5]), Request("b", [1, 2, 3, 4, 5])
    other = Request("c", [7, 7])
    for request in (begun, again):
        request.output_token_ids = [9, PLACEHOLDER]
    plan = StepPlan([(other, 2), (begun, 1), (again, 7)])
    assert on_their_way(plan, [again, other, begun]) == [(9, 0)]
    begun.num_computed_tokens = 6
    assert on_their_way(plan, [again, other, begun]) == [(2, 2), (9, 0)]


def test_an_abort_while_its_token_is_waited_for_drops_it():
    one = Story(EngineConfig(max_model_len=40), "chunked", True)
    engine = one.engine
    engine.add([1, 2, 3], SamplingParams(max_tokens=9), request_id="r0")
    run = engine.runner.run

    def leave(batch):
        """In the device's thread of time, while the engine's thread waits for it."""
        client = threading.Thread(target=engine.abort, args=("r0",))
        client.start()
        client.join(5)
        run(batch)

    engine.step()
    engine.runner.run = leave
    assert engine.step() == []
    assert engine.trace.requests["r0"].outcome == "cancelled"
    assert engine.trace.requests["r0"].events == []
    while engine.has_work:
        assert engine.step() == []
    assert engine.scheduler.num_blocks_used == 0


# ---------------------------------------------------------------- with a real model


def overlapped(model, config, policy=Chunked, **more):
    return Engine(model, config, policy, runner=LazyRunner, async_scheduling=True, **more)


@pytest.fixture(scope="module")
def truth(tiny64, greedy_of):
    return [greedy_of(tiny64, prompt, 6) for prompt in PROMPTS]


@pytest.mark.parametrize(
    "policy",
    [
        "chunked",
        "continuous",
        pytest.param("chunked-admission", marks=pytest.mark.slow),
        pytest.param("static", marks=pytest.mark.slow),
    ],
)
def test_policies_and_prefix_cache_change_no_token(tiny64, truth, policy):
    engine = overlapped(tiny64, config_of(128, 4, cache=True), POLICIES[policy])
    assert outputs_of(engine, PROMPTS, GREEDY) == truth
    assert outputs_of(engine, PROMPTS, GREEDY) == truth  # a second time, from the cache


@pytest.mark.parametrize("cache", [pytest.param(False, marks=pytest.mark.slow), True])
def test_forced_preemption_changes_no_token(tiny64, truth, cache):
    engine = overlapped(tiny64, config_of(128, 4, blocks=19, cache=cache))
    order = [1, 1, 2, 0, 3]
    found = outputs_of(engine, [PROMPTS[i] for i in order], GREEDY)
    assert found == [truth[i] for i in order]
    assert sum(len(step.preempted) for step in engine.trace.steps) > 0


def draws(seed, **changes):
    return seeded(seed, max_tokens=8, **changes)


HARD = {
    "seed": draws(42),
    "top": draws(1, top_k=5, top_p=0.9),
    "penalty": draws(3, repetition_penalty=1.5),
    "greedy penalty": SamplingParams(max_tokens=7, repetition_penalty=1.4, ignore_eos=True),
    "logprobs": SamplingParams(max_tokens=7, logprobs=2, ignore_eos=True),
    "min_tokens": draws(5, min_tokens=4, stop_token_ids=tuple(range(0, 256, 3))),
    "stop string": draws(6, stop=("a", "e", "i")),
}


def told(engine, params):
    """Everything that was said of requests with these parameters, without the stamps."""
    names = [engine.add(PROMPTS[3], p) for p in params]
    said = {name: [] for name in names}
    while engine.has_work:
        for o in engine.step():
            logprobs = o.logprobs and [(e.token_id, e.logprob, e.rank, e.top) for e in o.logprobs]
            what = (o.token_ids, o.text, o.finish_reason, o.stop_reason, logprobs)
            said[o.request_id].append(what)
    assert engine.scheduler.num_blocks_used == 0
    return [said[name] for name in names]


QUICK = ("seed", "stop string", "all")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow)
        for name in (*HARD, "all")
    ],
)
def test_what_looks_back_is_told_the_same(tiny64, name):
    params = [HARD[name]] if name in HARD else list(HARD.values())
    engine = overlapped(tiny64, config_of(seqs=8))
    assert told(engine, params) == told(Engine(tiny64, config_of(seqs=8)), params)
    waits = name in ("penalty", "greedy penalty", "logprobs")
    deepest = max(engine.runner.queue.depths)
    assert deepest == (1 if waits or name == "all" else 2), "who waits, and who does not"


def test_a_nan_ends_its_requests_and_the_engine_goes_on(tiny):
    from llmlab.engine.attention import paged_attention

    broken = []

    def attention(q, *rest):
        return q * math.nan if broken else paged_attention(q, *rest)

    prompt = list(range(1, 12))  # two full blocks, which the cache must not keep
    engine = overlapped(tiny, config_of(cache=True), attention=attention)
    name = engine.add(prompt, GREEDY)
    engine.step()  # launched, not yet computed
    broken.append(True)
    with pytest.warns(RuntimeWarning, match="NaN"), pytest.raises(ValueError, match="not finite"):
        engine.step()
    assert engine.scheduler.num_blocks_used == 0
    assert engine.trace.requests[name].outcome == "failed"
    broken.clear()
    engine.runner.queue.waiting.clear()
    expected = outputs_of(Engine(tiny, config_of()), [prompt], GREEDY)
    assert outputs_of(engine, [prompt], GREEDY) == expected


# ---------------------------------------------------------------- the switch


def test_off_on_the_cpu_unless_asked_for_and_the_trace_says_which(tiny):
    for wanted, found in ((None, False), (False, False), (True, True)):
        engine = Engine(tiny, config_of(), async_scheduling=wanted)
        assert engine.async_scheduling is found
        assert engine.trace.meta.get("async_scheduling", False) is found


def test_on_by_default_with_a_model_on_cuda():
    model = history_model()
    model.device = "cuda"
    assert Engine(model, EngineConfig(num_blocks=8, max_model_len=8), runner=HistoryRunner)
    engine = Engine(model, EngineConfig(num_blocks=8, max_model_len=8), runner=HistoryRunner)
    assert engine.async_scheduling


def test_a_scheduler_that_knows_no_placeholders_gets_none(tiny):
    class Plain(Chunked):
        takes_placeholders = Scheduler.takes_placeholders

        def commit(self, plan, tokens):
            assert PLACEHOLDER not in tokens
            return super().commit(plan, tokens)

    with pytest.raises(ValueError, match=r"async_scheduling = True.*Plain"):
        Engine(tiny, config_of(), Plain, async_scheduling=True)
    outputs_of(Engine(tiny, config_of(), Plain), PROMPTS[2:], GREEDY)


def test_launching_a_step_reads_no_token_on_the_host(tiny, monkeypatch):
    """Feeding and drawing with every way to look at a tensor's values forbidden."""
    from llmlab.engine.batch import make_batch
    from llmlab.engine.cuda_runner import CudaRunner
    from llmlab.engine.sampler import Row

    runner = CudaRunner(tiny, config_of())
    batch = make_batch([5, -1], [0, 0], [0, 4], [0, 1, 2], [1, 1], [[0], [1]], [0, 1])
    logits = torch.randn(2, 259, generator=torch.Generator().manual_seed(1))
    rows = [Row(seeded(3, top_p=0.9), 3, 1), Row(SamplingParams(), banned=[7])]

    def forbidden(*args, **more):
        raise AssertionError("looked at a value")

    with monkeypatch.context() as patch:
        for name in ("tolist", "item", "numpy", "cpu", "__bool__", "__int__", "__float__"):
            patch.setattr(torch.Tensor, name, forbidden)
        sampled = runner.launch_sample(logits, rows)
        runner.feed(batch, [(1, 0)], sampled.tokens)
    first, second = sampled.read()
    assert batch.input_ids.tolist() == [5, first]
    assert second == int(logits[1].argmax())

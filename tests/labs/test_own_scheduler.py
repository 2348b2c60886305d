"""A learner's plan_step: right ones pass and drive the engine, each usual mistake is named."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmlab.config import EngineConfig
from llmlab.engine import Engine, load_model
from llmlab.labs.own_scheduler import (
    Pending,
    check_plan_step,
    fault,
    plan_step,
    scheduler_from,
)
from llmlab.sched import Chunked, Request, SamplingParams
from llmlab.sim.load import poisson_arrivals
from llmlab.sim.simulate import simulate


def test_the_library_s_own_passes():
    assert check_plan_step(plan_step).state == "correct"


def in_order(pending, budget):
    given = []
    for p in pending:
        given.append(min(p.missing, budget))
        budget -= given[-1]
    return given


def decodes_only(pending, budget):
    return [1 if p.decodes and i < budget else 0 for i, p in enumerate(pending)]


def over_budget(pending, budget):
    return [p.missing for p in pending]


def whole_prompts(pending, budget):
    given = [0] * len(pending)
    for decodes in (True, False):
        for i, p in enumerate(pending):
            if p.decodes is decodes and p.missing <= budget:
                given[i], budget = p.missing, budget - p.missing
    return given


def shortest_prompt_first(pending, budget):
    given = [0] * len(pending)
    for i in sorted(
        range(len(pending)), key=lambda i: (not pending[i].decodes, pending[i].missing)
    ):
        given[i] = min(pending[i].missing, budget)
        budget -= given[i]
    return given


MISTAKES = [
    (in_order, "it decodes, and the budget has a token"),
    (decodes_only, "unused"),
    (over_budget, "over the budget"),
    (whole_prompts, "unused"),
    (shortest_prompt_first, "before prompt"),
    (lambda p, b: [0.5] * len(p), "whole number"),
    (lambda p, b: [1] * (len(p) + 1), "must be a list"),
    (lambda p, b: 1 / 0, "ZeroDivisionError"),
    (lambda p, b: [x.missing + 1 for x in p], "misses only"),
]


def test_each_usual_mistake_is_named():
    for wrong, said in MISTAKES:
        result = check_plan_step(wrong)
        assert result.state == "incorrect", said
        assert said in result.message


def unwritten(pending, budget):
    raise NotImplementedError


def test_a_stub_is_not_answered_yet():
    for stub in (unwritten, lambda p, b: None, lambda p, b: ...):
        assert check_plan_step(stub).state == "not answered yet"


PENDING = st.lists(
    st.builds(
        lambda decodes, n: Pending(1 if decodes else n, decodes),
        st.booleans(),
        st.integers(1, 500),
    ),
    max_size=12,
)


@given(PENDING, st.integers(1, 600))
@settings(max_examples=200, deadline=None)
def test_the_library_s_own_is_always_legal_and_wastes_nothing(pending, budget):
    plan = plan_step(pending, budget)
    assert fault(pending, budget, plan) is None
    assert sum(plan) == min(budget, sum(p.missing for p in pending))


@given(
    seed=st.integers(0, 10_000), budget=st.sampled_from([16, 40, 128]), blocks=st.integers(8, 40)
)
@settings(max_examples=25, deadline=None)
def test_it_schedules_step_by_step_as_chunked_does(seed, budget, blocks):
    """Also when blocks run out and requests are preempted."""
    config = EngineConfig(
        max_num_batched_tokens=budget, max_num_seqs=6, num_blocks=blocks, max_model_len=128
    )
    load = poisson_arrivals(200.0, 12, [("a", 10, 20), ("b", 90, 12)], seed)

    def steps(policy):
        trace = simulate(load, "llama-3.1-8b", "h100-sxm", config, policy)
        return [(sorted(s.scheduled), s.preempted, s.t_end) for s in trace.steps]

    assert steps(scheduler_from(plan_step)) == steps(Chunked)


def test_it_drives_the_real_engine_to_the_same_tokens():
    model, config = load_model("tiny"), EngineConfig(max_num_batched_tokens=24, num_blocks=64)

    def answers(scheduler):
        engine = Engine(model, config, scheduler)
        for i in range(4):
            ids = [(5 * i + j) % 250 for j in range(10 + 20 * i)]
            engine.add(ids, SamplingParams(max_tokens=6), request_id=str(i))
        found = {}
        while engine.has_work:
            for out in engine.step():
                found.setdefault(out.request_id, []).extend(out.token_ids)
        engine.scheduler.check_integrity()
        return found

    assert answers(scheduler_from(plan_step)) == answers(Chunked)


def test_an_illegal_plan_is_an_error_in_the_learner_s_words():
    own = scheduler_from(over_budget)(EngineConfig(max_num_batched_tokens=8))
    own.add(Request("a", list(range(20)), SamplingParams(max_tokens=4)))
    with pytest.raises(ValueError, match="plan_step gives 20 tokens in all, over the budget of 8"):
        own.plan()

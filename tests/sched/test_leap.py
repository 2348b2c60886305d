"""Many decode steps at once are the same as one after the other."""

from __future__ import annotations

from copy import deepcopy
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmlab.config import EngineConfig
from llmlab.sched import Chunked, Continuous, Static
from llmlab.sched.base import BaseScheduler
from tests.sched.lab import lab, make
from tests.sched.test_machine import configs, prompts


def state(s: BaseScheduler) -> tuple:
    """Everything a later plan could depend on."""
    blocks = s.blocks
    requests = [
        (
            r.request_id,
            r.status,
            r.num_computed_tokens,
            list(r.output_token_ids),
            list(r.block_ids),
        )
        for r in s._alive.values()
    ]
    lists = [[r.request_id for r in group] for group in (s.decoding, s.prefilling, s.waiting)]
    # Cached keys are compared by the blocks they lead to; keys alone may be computed earlier.
    return requests, lists, list(blocks._free), list(blocks._refs), list(blocks._key_of)


def slowly(s: BaseScheduler, tokens: list[list[int]]) -> list[int]:
    used = []
    for of_step in zip(*tokens, strict=True):
        decoding = list(s.decoding)
        plan = s.plan()
        assert plan.scheduled == [(request, 1) for request in decoding]
        assert not plan.preempted
        assert plan.sampled == decoding
        assert s.commit(plan, of_step) == []
        used.append(s.num_blocks_used)
    return used


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([Chunked, partial(Chunked, order="admission"), Continuous, Static]),
    configs,
    st.lists(st.tuples(prompts, st.integers(2, 20)), min_size=1, max_size=5),
    st.data(),
)
def test_a_leap_is_the_plain_loop(scheduler, config: EngineConfig, sizes: list, data) -> None:
    s = scheduler(config.with_(max_model_len=100))
    for number, (prompt, most) in enumerate(sizes):
        try:
            s.add(make(f"r{number}", prompt, most))
        except ValueError:
            continue
    counter = iter(range(10**6))
    while s.has_work:
        most = s.steps_until_change()
        if most:
            steps = data.draw(st.integers(1, most))
            tokens = [[next(counter) for _ in range(steps)] for _ in s.decoding]
            other = deepcopy(s)
            assert s.advance(steps, tokens) == slowly(other, tokens)
            assert state(s) == state(other)
            s.check_integrity()
        plan = s.plan()
        s.commit(plan, [next(counter) for _ in plan.sampled])


def test_the_count_ends_one_step_before_the_first_end() -> None:
    s = lab(B=4, N=50, T=16).add(make("A", 4, 9), make("B", 4, 6)).scheduler
    s.commit(s.plan(), [0, 0])
    assert s.steps_until_change() == 4
    s.advance(4, [[0] * 4] * 2)
    assert s.steps_until_change() == 0
    assert [r.request_id for r in s.commit(s.plan(), [0, 0])] == ["B"]


def test_the_count_ends_before_blocks_are_short() -> None:
    s = lab(B=4, N=4, T=16).add(make("A", 4, 9), make("B", 4, 9)).scheduler
    s.commit(s.plan(), [0, 0])
    assert s.steps_until_change() == 4
    s.advance(4, [[0] * 4] * 2)
    assert [r.request_id for r in s.plan().preempted] == ["B"]


def test_a_head_that_finds_no_room_does_not_end_the_count() -> None:
    s = lab(B=4, N=5, T=64).add(make("A", 12, 8), make("C", 9, 1)).scheduler
    s.commit(s.plan(), [0])
    assert s.num_waiting == 1
    assert s.steps_until_change() == 6


@pytest.mark.parametrize(
    "change", [{"stop_token_ids": (5,)}, {"eos": 5}], ids=["stop token", "end of sequence"]
)
def test_where_a_token_may_end_it_no_step_is_sure(change: dict) -> None:
    s = lab(B=4, N=50, T=16).add(make("A", 4, 9, **change)).scheduler
    s.commit(s.plan(), [0])
    assert s.steps_until_change() == 0


def test_while_a_prompt_is_computed_or_a_request_may_begin_no_step_is_sure() -> None:
    bench = lab(B=4, N=50, T=4).add(make("A", 1, 9), make("L", 9, 2))
    bench.step()
    assert bench.scheduler.steps_until_change() == 0
    bench = lab(B=4, N=50, T=4).add(make("A", 4, 9))
    bench.step()
    assert bench.scheduler.steps_until_change() == 7
    bench.add(make("B", 1, 1))
    assert bench.scheduler.steps_until_change() == 0


@pytest.mark.parametrize("steps", [0, -1, 9])
def test_a_leap_too_far_is_refused_and_changes_nothing(steps: int) -> None:
    bench = lab(B=4, N=50, T=16).add(request := make("A", 4, 9))
    bench.step()
    with pytest.raises(ValueError, match=rf"steps = {steps}: must be in 1\.\.7"):
        bench.scheduler.advance(steps, [[0] * max(steps, 0)])
    with pytest.raises(ValueError, match="tokens: must be 2 for each of 1"):
        bench.scheduler.advance(2, [[0]])
    assert request.num_computed_tokens == 4
    bench.run()

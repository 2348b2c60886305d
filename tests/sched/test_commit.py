"""Commit and finish: what a caller can get wrong, and aborts at every moment."""

from __future__ import annotations

import pytest

from llmlab.sched import Chunked, Continuous, Static
from tests.sched.lab import lab, make

POLICIES = pytest.mark.parametrize("scheduler", [Static, Continuous, Chunked])


def test_a_plan_is_committed_once_and_only_the_latest() -> None:
    s = lab(B=4, N=10, T=8).add(make("A", 4, 3)).scheduler
    old, new = s.plan(), s.plan()
    for plan in (old, new):
        if plan is new:
            assert s.commit(plan, [1]) == []
        with pytest.raises(ValueError, match="plan: must be the latest one, committed once"):
            s.commit(plan, [1])
    s.check_integrity()


@pytest.mark.parametrize("tokens", [[], [1, 2]])
def test_a_wrong_number_of_tokens_changes_nothing(tokens: list[int]) -> None:
    s = lab(B=4, N=10, T=8).add(request := make("A", 4, 1)).scheduler
    plan = s.plan()
    with pytest.raises(ValueError, match=r"tokens: must be 1, one each"):
        s.commit(plan, tokens)
    assert (request.num_computed_tokens, request.output_token_ids) == (0, [])
    assert s.commit(plan, [1]) == [request]


@POLICIES
def test_a_lost_step_loses_nothing(scheduler: type) -> None:
    """The forward pass failed: the next plan computes the same tokens."""
    bench = lab(scheduler, B=4, N=10, T=16).add(make("A", 6, 4), make("B", 5, 3))
    for _ in range(3):
        bench.plan()
        bench.plan()
        bench.step()
    bench.run()


@POLICIES
@pytest.mark.parametrize("during", [False, True])
def test_a_request_aborted_at_any_moment_frees_its_blocks(scheduler: type, during: bool) -> None:
    for moment in range(8):
        bench = lab(scheduler, B=4, N=4, T=16, enable_prefix_caching=True)
        bench.add(make("A", 5, 4), make("B", 5, 4), make("C", 5, 4))
        for _ in range(moment):
            bench.step()
        if during:
            bench.step(lambda _, bench=bench: bench.abort("B"))
        else:
            bench.abort("B")
        bench.run()


def test_abort_of_a_preempted_request() -> None:
    bench = lab(B=4, N=3, T=8).add(make("A", 4, 5), b := make("B", 4, 5))
    bench.step()
    assert bench.step().preempted == ["B"]
    assert bench.abort("B")
    assert b.finish_reason == "abort"
    assert len(b.output_token_ids) == 1
    bench.run()


def test_a_stop_found_outside_ends_a_request_in_the_same_words() -> None:
    bench = lab(B=4, N=10, T=8).add(request := make("A", 4, 9))
    bench.step()
    assert bench.scheduler.finish("A", "stop", "END")
    assert (request.finish_reason, request.stop_reason) == ("stop", "END")
    assert not bench.scheduler.finish("A", "length")
    assert request.finish_reason == "stop"
    assert bench.scheduler.num_blocks_used == 0


def test_an_unknown_reason_is_refused() -> None:
    bench = lab(B=4, N=10, T=8).add(make("A", 4, 9))
    with pytest.raises(ValueError, match=r"reason = 'tired': must be one of stop, length, abort"):
        bench.scheduler.finish("A", "tired")
    bench.run()


def test_integrity_is_checked_for_real() -> None:
    s = lab(B=4, N=10, T=8).add(request := make("A", 6, 9)).scheduler
    s.commit(s.plan(), [1])
    s.check_integrity()
    request.block_ids.append(9)
    with pytest.raises(RuntimeError, match="block 9"):
        s.check_integrity()
    request.block_ids.pop()
    request.num_computed_tokens = 9
    with pytest.raises(RuntimeError, match="tokens without a slot"):
        s.check_integrity()
    request.num_computed_tokens = 6
    s.waiting.push(request)
    with pytest.raises(RuntimeError, match="two lists"):
        s.check_integrity()

"""What each policy promises, and how they differ on the same requests."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmlab.config import EngineConfig
from llmlab.sched import Chunked, Continuous, Static
from tests.sched.lab import VOCAB, Lab, lab, make


def test_static_starts_the_next_batch_when_the_longest_member_has_ended() -> None:
    bench = lab(Static, B=4, N=50, T=16, S=2)
    bench.add(make("A", 4, 4), make("B", 4, 2), make("C", 4, 1)).run()
    assert bench.plans == [{"A": 4, "B": 4}, {"A": 1, "B": 1}, {"A": 1}, {"A": 1}, {"C": 4}]


def test_static_takes_the_room_of_the_whole_answer_at_the_start() -> None:
    bench = lab(Static, B=4, N=50, T=16).add(make("A", 4, 9))
    bench.step()
    assert bench.scheduler.num_blocks_used == 3
    bench.run()


def test_static_computes_all_prompts_before_anyone_decodes() -> None:
    bench = lab(Static, B=4, N=50, T=6).add(make("A", 4, 2), make("B", 5, 2)).run()
    assert bench.plans == [{"A": 4}, {"B": 5}, {"A": 1, "B": 1}]


def test_continuous_admits_at_every_step_and_stalls_the_decodes_meanwhile() -> None:
    bench = lab(Continuous, B=4, N=50, T=16).add(make("A", 4, 4))
    bench.step()
    bench.step()
    bench.add(make("L", 12, 2)).run()
    assert bench.plans == [{"A": 4}, {"A": 1}, {"L": 12}, {"A": 1, "L": 1}, {"A": 1}]


def test_continuous_never_cuts_a_prompt() -> None:
    bench = lab(Continuous, B=4, N=50, T=10).add(make("A", 6, 1), make("B", 6, 1)).run()
    assert bench.plans == [{"A": 6}, {"B": 6}]


@pytest.mark.parametrize("scheduler", [Static, Continuous])
def test_a_policy_that_cuts_no_prompts_refuses_one_longer_than_a_step(scheduler: type) -> None:
    with pytest.raises(ValueError, match=r"9 tokens: must be at most 8 tokens \(max_num_batched"):
        lab(scheduler, B=4, N=50, T=8).add(make("A", 9, 1))


def test_continuous_counts_the_tokens_a_preemption_would_compute_again() -> None:
    bench = lab(Continuous, B=4, N=50, T=8)
    with pytest.raises(ValueError, match=r"max_tokens = 6: must be at most 5 after a prompt of 4"):
        bench.add(make("A", 4, 6))
    bench.add(request := make("B", 4)).run()
    assert len(request.output_token_ids) == 5


def test_after_a_lost_step_continuous_goes_on_with_the_prompts_it_had_begun() -> None:
    bench = lab(Continuous, B=4, N=50, T=8).add(make("A", 4, 2))
    bench.plan()  # its forward pass failed
    bench.run()
    assert bench.plans == [{"A": 4}, {"A": 1}]


@pytest.mark.parametrize(("order", "walk"), [("decode_first", "QL"), ("admission", "LQ")])
def test_the_order_says_whom_a_short_budget_serves_first(order: str, walk: str) -> None:
    bench = lab(B=4, N=50, T=4, order=order, long_prefill_token_threshold=3)
    bench.add(make("L", 12, 1), make("Q", 1, 2)).run()
    assert list(bench.plans[1].items()) == [(name, {"L": 3, "Q": 1}[name]) for name in walk]


def test_order_admission_gives_an_old_prompt_the_whole_budget() -> None:
    """vLLM V1's walk: L was admitted first, so with its threshold gone it takes all 4 tokens."""
    for order, second in (("admission", {"L": 4}), ("decode_first", {"Q": 1, "L": 3})):
        bench = lab(B=4, N=50, T=4, order=order, long_prefill_token_threshold=3)
        bench.add(make("L", 12, 1), make("Q", 1, 2))
        bench.step()
        bench.scheduler.config = bench.scheduler.config.with_(long_prefill_token_threshold=0)
        assert bench.step().scheduled == second


def test_a_long_prompt_gets_no_more_than_its_threshold() -> None:
    bench = lab(B=4, N=50, T=16, long_prefill_token_threshold=5)
    bench.add(make("L", 12, 1), make("Q", 9, 1)).run()
    assert bench.plans == [{"L": 5, "Q": 5}, {"L": 5, "Q": 4}, {"L": 2}]


def test_the_watermark_holds_back_newcomers_but_never_a_lonely_one() -> None:
    bench = lab(B=4, N=10, T=64, watermark=0.3)
    bench.add(make("A", 36, 1)).run(1)  # 9 of 10 blocks: alone, it may
    bench.add(make("B", 12, 2), make("C", 16, 1), make("D", 1, 1)).run()
    # B holds 3 and needs no more; C's 4 leave 3 = the watermark; D must wait.
    assert bench.plans == [{"A": 36}, {"B": 12, "C": 16}, {"B": 1, "D": 1}]


def test_a_newcomer_preempts_nobody_however_urgent() -> None:
    bench = lab(B=4, N=4, T=16, policy="priority").add(make("low", 11, 3, priority=9))
    bench.step()
    bench.add(make("high", 8, 1, priority=0)).run()
    assert bench.plans == [{"low": 11}, {"low": 1}, {"low": 1}, {"high": 8}]


def test_priority_serves_the_urgent_first_and_equals_in_order_of_arrival() -> None:
    bench = lab(B=4, N=50, T=4, S=1, policy="priority")
    bench.add(make("a", 1, 1, priority=5), make("b", 1, 1, priority=1), make("c", 1, 1, priority=1))
    bench.add(make("d", 1, 1, priority=-2)).run()
    assert [name for plan in bench.plans for name in plan] == ["d", "b", "c", "a"]


def test_under_priority_the_least_urgent_goes_not_the_last() -> None:
    bench = lab(B=4, N=4, T=16, policy="priority")
    bench.add(make("low", 7, 2, priority=9))
    bench.step()
    bench.add(make("high", 8, 2, priority=0))
    bench.step()
    bench.run()
    assert [s.preempted for s in bench.steps if s.preempted] == []
    bench = lab(B=4, N=4, T=16, policy="priority")
    bench.add(make("low", 7, 6, priority=9))
    bench.step()
    bench.add(make("high", 8, 5, priority=0)).run()
    assert [s.preempted for s in bench.steps if s.preempted] == [["low"]]


def test_an_old_prompt_takes_back_the_blocks_of_a_younger_decode_and_its_token() -> None:
    bench = lab(B=2, N=6, T=5, long_prefill_token_threshold=4)
    bench.add(make("old", 11, 1), make("young", 1, 9)).run()
    assert bench.plans[0] == {"old": 4, "young": 1}
    preempting = next(step for step in bench.steps if step.preempted)
    assert preempting.preempted == ["young"]
    assert preempting.emitted in ([], ["old"])


def test_a_preempted_request_stands_before_those_that_came_later() -> None:
    bench = lab(B=4, N=3, T=8, S=2).add(make("A", 4, 5), make("B", 4, 5), make("C", 1, 1)).run()
    first = {name: next(i for i, p in enumerate(bench.plans) if name in p) for name in "ABC"}
    resumed = next(i for i, plan in enumerate(bench.plans) if plan.get("B") == 5)
    assert first["C"] >= resumed


requests = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 8)), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(
    requests,
    st.sampled_from(["decode_first", "admission"]),
    st.integers(1, 12),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 4),
    st.integers(0, 3),
)
def test_all_accepted_requests_end_within_the_sum_of_their_tokens(
    sizes: list, order: str, budget: int, seqs: int, size: int, spare: int, threshold: int
) -> None:
    """sum(P + M - 1) steps under fcfs, in the smallest pool that takes the largest of them."""
    blocks = max(-(-(p + m - 1) // size) for p, m in sizes) + spare
    bench = lab(
        B=size,
        N=blocks,
        T=budget,
        S=seqs,
        order=order,
        long_prefill_token_threshold=threshold,
    )
    bench.add(*(make(f"r{i}", p, m) for i, (p, m) in enumerate(sizes)))
    bench.run(sum(p + m - 1 for p, m in sizes))


@settings(max_examples=40, deadline=None)
@given(requests, st.data())
def test_the_output_is_the_same_under_every_policy_and_configuration(sizes: list, data) -> None:
    outputs = []
    for policy in (Chunked, Continuous, Static):
        config = EngineConfig(
            max_num_batched_tokens=data.draw(st.integers(20, 40)),
            max_num_seqs=data.draw(st.integers(1, 4)),
            block_size=data.draw(st.integers(1, 5)),
            num_blocks=data.draw(st.integers(20, 24)),
            enable_prefix_caching=data.draw(st.booleans()),
        )
        bench = Lab(policy(config, vocab_size=VOCAB))
        bench.add(*(make(f"r{i}", p, m) for i, (p, m) in enumerate(sizes))).run()
        outputs.append([r.output_token_ids for r in bench.requests])
    assert outputs[0] == outputs[1] == outputs[2]

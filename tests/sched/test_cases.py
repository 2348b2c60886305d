"""Failures that engines were reported to have, each as a small case with its whole trace.

B block size, N blocks, T tokens a step, S running requests, L context. {A:5, B:3} are the tokens
a step gives. The sources named are public issues and pull requests.
"""

from __future__ import annotations

import pytest

from llmlab.sched import BlockManager, Chunked, Continuous, Request, SamplingParams, Static
from tests.sched.lab import Lab, lab, make

SHARED = list(range(30, 38))  # a prefix of two blocks of four


def test_p01_a_request_larger_than_the_pool_is_refused_and_blocks_nobody() -> None:
    """vllm#39734"""
    bench = lab(B=4, N=4, T=32, S=8, L=1000)
    with pytest.raises(ValueError, match=r"20 tokens: must be at most 16 tokens .*= 16 slots"):
        bench.add(make("A", 20, 1))
    bench.add(make("B", 4, 2)).run(3)
    assert bench.plans == [{"B": 4}, {"B": 1}]


def test_p02_room_for_the_output_counts_at_the_door() -> None:
    """nano-vllm#274: alone, it would outgrow the pool and preempt itself for ever."""
    bench = lab(B=4, N=4, T=8)
    with pytest.raises(ValueError, match=r"max_tokens = 2: must be at most 1 after a prompt of 16"):
        bench.add(make("A", 16, 2))
    bench.add(make("A", 16, 1)).run()
    assert bench.plans == [{"A": 8}, {"A": 8}]
    assert bench.emissions == [[], ["A"]]


def test_p03_one_budget_decodes_first_then_chunks() -> None:
    """ATOM#1835, sglang#32549"""
    bench = lab(B=4, N=100, T=8).add(make("A", 5, 3), make("B", 12, 2)).run()
    assert bench.plans == [{"A": 5, "B": 3}, {"A": 1, "B": 7}, {"A": 1, "B": 2}, {"B": 1}]
    assert bench.emissions == [["A"], ["A"], ["A", "B"], ["B"]]
    assert [s.finished for s in bench.steps] == [[], [], ["A"], ["B"]]


def test_p04_a_long_prompt_stalls_no_decode_and_a_late_short_one_only_waits_for_budget() -> None:
    """vllm#53130"""
    bench = lab(B=4, N=100, T=8).add(make("A", 2, 6))
    bench.step()
    bench.add(make("L", 40, 2))
    bench.step()
    bench.add(make("Q", 3, 2)).run()
    assert bench.plans == [{"A": 2}, *[{"A": 1, "L": 7}] * 5, {"L": 5, "Q": 3}, {"L": 1, "Q": 1}]
    assert bench.emissions == [*[["A"]] * 6, ["L", "Q"], ["L", "Q"]]


def test_p05_a_chunk_that_is_not_the_last_emits_nothing() -> None:
    """nano-vllm#217"""
    for budget in (1, 2, 3, 5, 7, 8, 64):
        bench = lab(B=4, N=100, T=budget).add(make("A", 20, 3)).run()
        chunks = -(-20 // budget)
        assert bench.emissions == [*[[]] * (chunks - 1), *[["A"]] * 3]


def test_p06_a_preempted_request_keeps_its_history_and_emits_each_token_once() -> None:
    """FastDeploy#3080, pypto-lib#274"""
    a, b = make("A", 4, 5), make("B", 4, 5)
    bench = lab(B=4, N=3, T=8).add(a, b).run()
    assert bench.plans == [{"A": 4, "B": 4}, *[{"A": 1}] * 4, {"B": 5}, *[{"B": 1}] * 3]
    assert [s.preempted for s in bench.steps] == [[], ["B"], *[[]] * 7]
    assert [s.finished for s in bench.steps if s.finished] == [["A"], ["B"]]
    assert bench.steps[4].finished == ["A"]
    assert (a.num_preemptions, b.num_preemptions) == (0, 1)


@pytest.mark.parametrize("order", ["decode_first", "admission"])
def test_p07_a_victim_served_in_the_same_step_gives_its_tokens_back(order: str) -> None:
    """vllm#23347: `lo` runs before `hi`, takes the last block, and must then go for it."""
    lo, hi = make("lo", 8, 4, priority=5), make("hi", 8, 4, priority=5)
    bench = lab(B=4, N=5, T=16, policy="priority", order=order)
    bench.add(lo, hi)
    bench.step()
    hi.priority = 0  # it became urgent after both had begun
    bench.run()
    assert bench.plans[:2] == [{"lo": 8, "hi": 8}, {"hi": 1}]
    assert bench.steps[1].preempted == ["lo"]
    assert bench.steps[1].emitted == ["hi"]
    assert bench.plans == [{"lo": 8, "hi": 8}, *[{"hi": 1}] * 3, {"lo": 9}, {"lo": 1}, {"lo": 1}]


@pytest.mark.parametrize(("length", "hit", "rest"), [(7, 4, 3), (8, 4, 4), (9, 8, 1)])
def test_p08_a_fully_cached_prompt_still_computes_a_token(length: int, hit: int, rest: int) -> None:
    """nano-vllm#144: blocks are shared whole, and never all tokens."""
    prompt = list(range(length))
    bench = lab(B=4, N=10, T=32, enable_prefix_caching=True)
    bench.add(first := make("A", prompt, 1)).run()
    bench.add(second := make("B", prompt, 1)).run()
    assert bench.plans == [{"A": length}, {"B": rest}]
    assert bench.steps[1].hits == second.num_cached_tokens == hit
    assert first.output_token_ids == second.output_token_ids


@pytest.mark.parametrize("length", [7, 8, 9])
def test_p09_the_same_prompt_three_times_gives_the_same_tokens(length: int) -> None:
    """Rapid-MLX#994"""
    bench = lab(B=4, N=10, T=32, enable_prefix_caching=True)
    outputs = []
    for name in "ABC":
        bench.add(request := make(name, list(range(length)), 6)).run()
        outputs.append(request.output_token_ids)
    assert outputs[0] == outputs[1] == outputs[2]
    assert len(outputs[0]) == 6


def test_p10_positions_start_at_what_is_computed() -> None:
    """MinivLLM#98: chunks begin where the last one ended, a hit where the shared blocks end."""
    bench = lab(B=4, N=10, T=5, enable_prefix_caching=True).add(a := make("A", SHARED + [1] * 4, 1))
    starts = []
    while bench.scheduler.has_work:
        bench.step(lambda plan: starts.append((a.num_computed_tokens, plan.num_tokens)))
    assert starts == [(0, 5), (5, 5), (10, 2)]
    bench.add(b := make("B", SHARED + [2] * 4, 1))
    bench.step(lambda plan: starts.append((b.num_computed_tokens, plan.num_tokens)))
    assert starts[-1] == (8, 4)


def test_p11_block_arithmetic() -> None:
    """MinivLLM#76, FastDeploy#3292"""
    needed = [BlockManager(4, 4).blocks_for(tokens) for tokens in range(10)]
    assert needed == [0, 1, 1, 1, 1, 2, 2, 2, 2, 3]


@pytest.mark.parametrize(("prompt", "blocks"), [(3, [1, 1, 2]), (4, [1, 2, 2]), (5, [2, 2, 2])])
def test_p11_a_decode_takes_a_block_when_its_token_needs_one(prompt: int, blocks: list) -> None:
    bench = lab(B=4, N=10, T=8).add(a := make("A", prompt, 3))
    held = []
    while bench.scheduler.has_work:
        bench.step(lambda _: held.append(len(a.block_ids)))
    assert held == blocks


def snapshot(bench: Lab) -> tuple:
    blocks = bench.scheduler.blocks
    return list(blocks._refs), list(blocks._free), dict(blocks._block_of), list(blocks._key_of)


def cached_pool_half_used() -> Lab:
    """X left two cached blocks among the free ones; Y runs in three of the six."""
    bench = lab(B=4, N=6, T=32, enable_prefix_caching=True)
    bench.add(make("X", [*SHARED, 1], 1)).run()
    bench.add(make("Y", 11, 2))
    bench.step()
    assert (bench.scheduler.blocks.num_free, bench.scheduler.num_blocks_used) == (3, 3)
    return bench


@pytest.mark.parametrize(
    ("length", "reason"),
    [(20, "2 hits and 3 new, 3 free"), (16, "2 hits and 2 new: of 3 free, 2 are the hits")],
)
def test_p15_p16_a_refused_allocation_changes_nothing(length: int, reason: str) -> None:
    """vllm#11562, vllm#11565, vllm#10507: a hit among the free blocks is no free block too."""
    bench = cached_pool_half_used()
    z = make("Z", [*SHARED, *range(50, 50 + length - 8)], 2)
    before, hits = snapshot(bench), bench.scheduler.blocks.lookup(z)
    assert len(hits) == 2
    for _ in range(100):
        assert not bench.scheduler.blocks.allocate(z, length, hits), reason
        assert snapshot(bench) == before
        assert z.block_ids == []
    bench.add(z).run()
    assert z.num_cached_tokens == 8
    assert bench.plans[-3:] == [{"Y": 1}, {"Z": length - 8}, {"Z": 1}]


def test_p17_equal_prompts_in_one_step_are_both_computed() -> None:
    """nano-vllm#219, vllm#7414: neither reads a block that is not written yet."""
    prompt = list(range(9))
    bench = lab(B=4, N=6, T=64, enable_prefix_caching=True)
    bench.add(a := make("A", prompt, 1), b := make("B", prompt, 4))
    bench.step()
    assert bench.plans == [{"A": 9, "B": 9}]
    assert (a.num_cached_tokens, b.num_cached_tokens) == (0, 0)
    assert a.output_token_ids == b.output_token_ids[:1]
    bench.add(make("other", 12, 1))  # takes the blocks that A left
    bench.step()
    bench.add(make("C", prompt, 2)).run()


def test_p18_a_reused_block_forgets_what_it_held() -> None:
    """kvcached#362"""
    bench = lab(B=4, N=3, T=32, enable_prefix_caching=True)
    first, other = list(range(8)), list(range(50, 58))
    for name, prompt in [("p", first), ("q", other), ("p again", first)]:
        bench.add(request := make(name, prompt, 1)).run()
    # q took the block that had never been used and p's tail; p's head is still there.
    assert request.num_cached_tokens == 4
    bench.add(request := make("r", list(range(60, 72)), 1)).run()
    bench.add(request := make("p at last", first, 1)).run()
    assert request.num_cached_tokens == 0


def test_p19_a_request_can_be_aborted_before_it_has_any_block() -> None:
    """vllm#18485"""
    bench = lab(B=4, N=10, T=8, S=1).add(make("A", 4, 3), b := make("B", 4, 3))
    bench.step()
    assert bench.abort("B")
    assert not bench.abort("B")
    assert not bench.abort("nobody")
    assert (b.finish_reason, b.output_token_ids) == ("abort", [])
    bench.run()
    assert bench.plans == [{"A": 4}, {"A": 1}, {"A": 1}]


def test_p20_abort_frees_all_blocks_at_once_wherever_the_request_is() -> None:
    """sglang#6888, vllm#1556"""
    bench = lab(B=4, N=20, T=8)

    def free() -> int:
        return bench.scheduler.blocks.num_free

    bench.add(make("mid-prompt", 40, 2))
    bench.step()
    bench.step()
    assert free() == 16
    assert bench.abort("mid-prompt")
    assert free() == 20

    bench.add(decoding := make("decoding", 4, 9))
    for _ in range(3):
        bench.step()
    assert bench.abort("decoding")
    assert free() == 20
    assert len(decoding.output_token_ids) == 3

    bench.add(last := make("last step", 4, 1))
    bench.step(lambda _: bench.abort("last step"))
    assert free() == 20
    assert (last.finish_reason, last.output_token_ids) == ("abort", [])
    bench.check_idle()


def drive(request: Request, tokens: list[int]) -> list[int]:
    """Run one request alone with given tokens; returns how many were left over."""
    s = Chunked(lab(B=4, N=10).scheduler.config)
    s.add(request)
    rest = list(tokens)
    while s.has_work:
        plan = s.plan()
        s.commit(plan, [rest.pop(0) for _ in plan.sampled])
    assert s.num_blocks_used == 0
    return rest


@pytest.mark.parametrize(
    ("params", "tokens", "count", "reason", "stop_reason"),
    [
        ({"max_tokens": 1}, [5, 6], 1, "length", None),
        ({"max_tokens": 4}, [2, 6], 1, "stop", None),
        ({"max_tokens": 3}, [5, 6, 2, 7], 3, "stop", None),
        ({"max_tokens": 3, "ignore_eos": True}, [2, 2, 2, 7], 3, "length", None),
        ({"max_tokens": 4, "stop_token_ids": (9,)}, [5, 9, 6], 2, "stop", 9),
        ({"max_tokens": 4, "stop_token_ids": (2,)}, [2, 6], 1, "stop", None),
        ({"max_tokens": 4, "stop_token_ids": (2,), "ignore_eos": True}, [2, 6], 1, "stop", 2),
        ({"max_tokens": 4, "min_tokens": 3}, [2, 2, 2, 7], 3, "stop", None),
        ({"max_tokens": 4, "min_tokens": 4, "stop_token_ids": (9,)}, [9] * 5, 4, "stop", 9),
        ({"max_tokens": 3, "min_tokens": 3}, [2, 2, 7, 7], 3, "length", None),
    ],
)
def test_p26_when_a_request_ends_and_in_which_words(
    params: dict, tokens: list[int], count: int, reason: str, stop_reason: int | None
) -> None:
    """PocketLLM#133, vllm#28185, nano-vllm#270, sglang#10833. 2 is the end of the sequence."""
    request = Request("A", [1, 2, 3], SamplingParams(**params), eos_token_id=2)
    rest = drive(request, tokens)
    assert request.output_token_ids == tokens[:count]
    assert (request.finish_reason, request.stop_reason) == (reason, stop_reason)
    assert rest == tokens[count:], "finished, yet another token was asked for"


def test_p26_impossible_max_tokens_are_refused() -> None:
    for value in (0, -1, 1.5, True, 2**31, "8"):
        with pytest.raises(ValueError, match=rf"max_tokens = {value!r}: must be a whole"):
            SamplingParams(max_tokens=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", [Static, Continuous, Chunked])
def test_p26_one_token_and_done_leaves_nothing_behind(policy: type) -> None:
    bench = lab(policy, B=4, N=10, T=16).add(make("A", 5, 1), make("B", 4, 1)).run(1)
    assert bench.plans == [{"A": 5, "B": 4}]

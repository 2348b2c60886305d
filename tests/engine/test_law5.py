"""An answer depends on prompt, parameters and seed alone: not on budget, blocks, pool, policy,
cache, neighbours or preemption. Exact in float64, against a forward pass without any cache."""

from __future__ import annotations

import itertools
import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmlab.config import EngineConfig
from llmlab.engine import Engine, load_model
from llmlab.sched.chunked import Chunked
from llmlab.sched.continuous import Continuous
from llmlab.sched.request import SamplingParams
from llmlab.sched.static import Static

POLICIES = {
    "chunked": Chunked,
    "chunked-admission": lambda config, **more: Chunked(config, order="admission", **more),
    "continuous": Continuous,
    "static": Static,
}
PROMPTS = [
    [(5 * i + 1) % 256 for i in range(70)],
    [(5 * i + 1) % 256 for i in range(33)],  # shares a prefix with the first
    [7],
    [(3 * i * i + 2) % 256 for i in range(16)],
]
COUNT = 6


@pytest.fixture(scope="module")
def truth(tiny64, greedy_of):
    """Greedy tokens of every prompt, each computed alone and without a cache."""
    return [greedy_of(tiny64, prompt, COUNT) for prompt in PROMPTS]


def outputs_of(engine, prompts, params):
    """Token ids of every prompt, all served together."""
    if not isinstance(params, list):
        params = [params] * len(prompts)
    names = [engine.add(p, q) for p, q in zip(prompts, params, strict=True)]
    tokens = {name: [] for name in names}
    while engine.has_work:
        for out in engine.step():
            tokens[out.request_id] += out.token_ids
        engine.scheduler.check_integrity()
    assert engine.scheduler.num_blocks_used == 0
    return [tokens[name] for name in names]


GREEDY = SamplingParams(max_tokens=COUNT, ignore_eos=True)


def config_of(budget=64, block=4, blocks=0, cache=False, seqs=4):
    return EngineConfig(
        max_num_batched_tokens=budget,
        block_size=block,
        num_blocks=blocks or 4 * -(-80 // block),
        max_model_len=128,
        max_num_seqs=seqs,
        enable_prefix_caching=cache,
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_the_policies_give_the_same_tokens(tiny64, truth, policy):
    engine = Engine(tiny64, config_of(128, 4, cache=True), scheduler=POLICIES[policy])
    assert outputs_of(engine, PROMPTS, GREEDY) == truth
    assert outputs_of(engine, PROMPTS, GREEDY) == truth  # a second time, from the cache


@pytest.mark.parametrize("budget", [1, 8, 64])
def test_a_small_budget_changes_no_token(tiny64, truth, budget):
    assert outputs_of(Engine(tiny64, config_of(budget, 16)), PROMPTS, GREEDY) == truth


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("block", [1, 4, 16, 64])
def test_budget_block_size_policy_and_cache_change_no_token(tiny64, truth, policy, block):
    whole = policy in ("continuous", "static")  # they compute a prompt in one step
    for budget, cache in itertools.product((8, 16, 64, 4096), (False, True)):
        if whole and budget < 70:
            continue
        config = config_of(budget, block, cache=cache)
        engine = Engine(tiny64, config, scheduler=POLICIES[policy])
        assert outputs_of(engine, PROMPTS, GREEDY) == truth
        assert outputs_of(engine, PROMPTS, GREEDY) == truth  # a second time, from the cache


@pytest.mark.parametrize("policy", ["chunked", "chunked-admission", "continuous"])
@pytest.mark.parametrize("cache", [False, True])
def test_forced_preemption_changes_no_token(tiny64, truth, policy, cache):
    # 19 blocks of 4 hold the longest request and little beside it.
    engine = Engine(tiny64, config_of(128, 4, blocks=19, cache=cache), scheduler=POLICIES[policy])
    order = [1, 1, 2, 0, 3]
    prompts = [PROMPTS[i] for i in order]
    assert outputs_of(engine, prompts, GREEDY) == [truth[i] for i in order]
    assert sum(len(step.preempted) for step in engine.trace.steps) > 0


@given(st.data())
@settings(
    max_examples=10 if "LLMLAB_WORKLOADS" not in os.environ else 60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_neighbours_pool_and_budget_change_no_token(tiny64, truth, data):
    picks = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=6), label="prompts")
    block = data.draw(st.sampled_from([1, 4, 16]), label="block size")
    least = -(-(70 + COUNT - 1) // block)
    engine = Engine(
        tiny64,
        config_of(
            budget=data.draw(st.integers(1, 200), label="budget"),
            block=block,
            blocks=data.draw(st.integers(least, 3 * least), label="blocks"),
            cache=data.draw(st.booleans(), label="cache"),
            seqs=data.draw(st.integers(1, 6), label="seqs"),
        ),
    )
    assert outputs_of(engine, [PROMPTS[i] for i in picks], GREEDY) == [truth[i] for i in picks]


def seeded(seed, **changes):
    return SamplingParams(
        **{"temperature": 0.8, "seed": seed, "max_tokens": 16, "ignore_eos": True} | changes
    )


def test_a_seed_gives_its_tokens_whatever_runs_beside_it(tiny64):
    prompt = PROMPTS[3]

    def engine(**changes):
        return Engine(tiny64, config_of(**changes))

    (alone,) = outputs_of(engine(), [prompt], seeded(42))
    assert len(alone) == 16
    (other,) = outputs_of(engine(), [prompt], seeded(43))
    assert other != alone
    one = engine()
    assert outputs_of(one, [prompt], seeded(42)) == [alone]
    assert outputs_of(one, [prompt], seeded(42)) == [alone]  # twice in one engine
    for _ in range(50):
        outputs_of(one, [[9, 9]], SamplingParams(temperature=1.0, max_tokens=1))
    assert outputs_of(one, [prompt], seeded(42)) == [alone]  # after 50 others
    for neighbour in (seeded(None), seeded(7), GREEDY, seeded(1, top_k=1)):
        pair = outputs_of(engine(), [prompt, PROMPTS[1]], [seeded(42), neighbour])
        assert pair[0] == alone
        pair = outputs_of(engine(), [PROMPTS[1], prompt], [neighbour, seeded(42)])
        assert pair[1] == alone  # another row of the batch


def test_a_seed_gives_its_tokens_through_a_preemption(tiny64):
    alone = outputs_of(Engine(tiny64, config_of()), [PROMPTS[3]], seeded(42))
    small = Engine(tiny64, config_of(blocks=12))
    _, preempted = outputs_of(small, [PROMPTS[3][::-1], PROMPTS[3]], [seeded(5), seeded(42)])
    assert sum(len(step.preempted) for step in small.trace.steps) > 0
    assert [preempted] == alone


def test_unseeded_requests_differ(tiny64):
    engine = Engine(tiny64, config_of())
    first, second = outputs_of(engine, [PROMPTS[3]] * 2, seeded(None))
    assert first != second


@pytest.mark.slow
@pytest.mark.parametrize("budget", [8, 16, 64, 4096])
@pytest.mark.parametrize("cache", [False, True])
def test_the_real_model_in_float32_keeps_its_tokens_where_the_margin_allows(
    smollm2, logits_of, budget, cache
):
    texts = ["The capital of France is", "def add(a, b):\n    return", "The capital of Spain is"]
    prompts = [smollm2.tokenizer.encode(text) for text in texts]
    engine = Engine(smollm2, config_of(budget, 16, cache=cache))
    for prompt, tokens in zip(prompts, outputs_of(engine, prompts, GREEDY), strict=True):
        reference = logits_of(smollm2, prompt + tokens)
        for place, token in enumerate(tokens, len(prompt) - 1):
            best = reference[place].topk(2)
            if float(best.values[0] - best.values[1]) > 2e-3:
                assert token == int(best.indices[0])
            else:
                assert float(best.values[0] - reference[place, token]) < 2e-3


@pytest.mark.slow
def test_packed_weights_keep_the_law_within_their_own_rounding(logits_of):
    packed = load_model()
    prompt = packed.tokenizer.encode("Water boils at one hundred degrees. " * 4)
    batches = [logits_of(packed, prompt)[-1]]
    engine = Engine(packed, config_of(8, 16))
    forward, seen = engine.runner.forward, []

    def record(batch):
        seen.append(forward(batch))
        return seen[-1]

    engine.runner.forward = record
    outputs_of(engine, [prompt], SamplingParams(max_tokens=1))
    batches.append(seen[-1][0])
    assert torch.isfinite(batches[0]).all()
    assert (batches[0] - batches[1]).abs().max() < 0.05

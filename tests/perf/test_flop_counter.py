"""The counted FLOPs are those that torch counts in the engine's own forward pass."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from llmlab.config import EngineConfig
from llmlab.engine import Engine, load_model
from llmlab.perf.cost import CostModel, Precision, trace_shapes
from llmlab.sched.request import SamplingParams

pytestmark = pytest.mark.slow  # the counter alone costs seconds to load


def plain_attention(q, k_cache, v_cache, batch):
    """Attention as two products that torch's counter knows (it passes over the fused one)."""
    out, start, block_size = torch.empty_like(q), 0, k_cache.shape[1]
    for row, (n, context) in enumerate(zip(batch.query_lens, batch.context_lens, strict=True)):
        blocks = batch.block_table[row, : -(-context // block_size)]
        group = q.shape[1] // k_cache.shape[2]
        k, v = (
            cache[blocks].flatten(0, 1)[:context].repeat_interleave(group, 1).transpose(0, 1)
            for cache in (k_cache, v_cache)
        )  # [Hq, C, D]
        scores = q[start : start + n].transpose(0, 1) @ k.transpose(1, 2)  # [Hq, n, C]
        allowed = torch.ones(n, context, dtype=torch.bool).tril(context - n)
        weights = (scores / q.shape[2] ** 0.5).masked_fill(~allowed, -torch.inf).softmax(-1)
        out[start : start + n] = (weights @ v).transpose(0, 1)
        start += n
    return out


def counted_and_predicted(model, prompts: list[int], output: int) -> list[tuple[float, float]]:
    """FLOPs of every step: torch's count, and ours with the pairs that the mask hides."""
    config = EngineConfig(max_num_batched_tokens=24, max_num_seqs=4, max_model_len=128)
    engine = Engine(model, config, attention=plain_attention)
    for n in prompts:
        engine.add(list(range(1, n + 1)), SamplingParams(max_tokens=output, ignore_eos=True))
    coster = CostModel(model.config, Precision("fp32", "fp32"))
    found = []
    while engine.has_work:
        with FlopCounterMode(display=False) as counter:
            engine.step()
        step, shape = engine.trace.steps[-1], trace_shapes(engine.trace)[-1]
        # This attention multiplies whole rectangles; causality needs only the triangle.
        hidden = sum(n * (n - 1) // 2 for _, n, _, _ in step.scheduled) * coster.pair_flops
        found.append((counter.get_total_flops(), coster.cost(shape).flops + hidden))
    return found


@pytest.mark.parametrize("name", ["tiny", "tiny-qwen3"])
def test_every_step_of_the_tiny_model_costs_what_torch_counts(name):
    steps = counted_and_predicted(load_model(name), [5, 40, 17], 6)
    assert len(steps) > 6
    for counted, predicted in steps:
        assert counted == predicted


def test_every_step_of_the_real_model_costs_what_torch_counts():
    steps = counted_and_predicted(load_model(exact=True), [5, 40], 3)
    assert len(steps) > 2
    for counted, predicted in steps:
        assert counted == predicted

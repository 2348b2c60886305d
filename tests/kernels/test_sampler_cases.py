"""Two mistakes of sampling kernels, held against both samplers (sampling stays in torch)."""

from __future__ import annotations

import math

import pytest
import torch

from llmlab.engine import cuda_sampler, sampler
from llmlab.engine.sampler import Row
from llmlab.sched.request import SamplingParams
from tests.engine.lazy import sample_batch

SAMPLERS = [sampler.sample, sample_batch]


@pytest.mark.parametrize("sample", SAMPLERS)
def test_logits_with_padded_rows_give_the_tokens_of_contiguous_ones(sample):
    """vllm#42684: the kernel assumed contiguous rows; row 1 and on were read from the padding."""
    vocab = 50
    big = torch.full((4, vocab + 64), 100.0)
    big[:, :vocab] = torch.randn(4, vocab, generator=torch.Generator().manual_seed(1))
    logits = big[:, :vocab]
    assert not logits.is_contiguous()
    for params in (
        SamplingParams(),
        SamplingParams(temperature=1.0, top_k=5),
        SamplingParams(temperature=1.0, top_p=0.8),
        SamplingParams(temperature=1.0),
    ):
        rows = [Row(params, seed=i) for i in range(4)]
        assert sample(logits, rows) == sample(logits.contiguous(), rows)


@pytest.mark.parametrize("sample", SAMPLERS)
@pytest.mark.parametrize("draw", [0.0, 1.0 - 2**-53, 1.0])
def test_a_masked_token_is_never_drawn_at_the_ends_of_the_unit_interval(sample, draw, monkeypatch):
    """vllm#43249: noise of infinity times a masked logit was NaN and won."""
    for module in (sampler, cuda_sampler):
        monkeypatch.setattr(module, "uniform", lambda seed, index: draw)
    logits = torch.zeros(3, 9)
    logits[0, [0, 8]] = logits[1, 1:] = logits[2, :8] = -math.inf
    for params in (SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, top_k=9)):
        first, second, third = sample(logits, [Row(params)] * 3)
        assert first in range(1, 8)
        assert (second, third) == (0, 8)


@pytest.mark.parametrize("sample", SAMPLERS)
def test_a_row_with_every_token_masked_is_an_error(sample):
    logits = torch.full((1, 9), -math.inf)
    with pytest.raises(ValueError, match="not finite"):
        sample(logits, [Row(SamplingParams(temperature=1.0))])

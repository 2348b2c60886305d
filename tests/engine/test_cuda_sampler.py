"""The batched sampler draws exactly the tokens of the sampler that goes row by row."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llmlab.engine.sampler import Row, sample
from llmlab.sched.request import SamplingParams
from tests.engine.lazy import sample_batch

VOCAB = 40


@st.composite
def rows(draw):
    params = SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.0, 0.3, 1.0, 5.0])),
        top_k=draw(st.sampled_from([0, 0, -1, 1, 3, 100])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.9, 0.4, 1e-6])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.1, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3, 0.5])),
    )
    tokens = st.lists(st.integers(0, VOCAB - 1), max_size=6)
    return Row(
        params, draw(st.integers(0, 2**40)), draw(st.integers(0, 9)), draw(tokens), draw(tokens)
    )


@settings(max_examples=80, deadline=None)
@given(st.lists(rows(), min_size=1, max_size=6), st.integers(0, 99), st.booleans())
def test_a_batch_is_its_rows(batch, seed, ties):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(batch), VOCAB, generator=generator) * 3
    if ties:
        logits = logits.round()
    before = logits.clone()
    assert sample_batch(logits, batch) == sample(logits, batch)
    assert torch.equal(logits, before)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_an_error(bad):
    logits = torch.zeros(2, VOCAB)
    logits[1, 3] = bad
    rows_ = [Row(SamplingParams()), Row(SamplingParams())]
    with pytest.raises(ValueError, match="not finite"):
        sample_batch(logits, rows_)


def test_masked_columns_are_never_drawn():
    logits = torch.full((64, VOCAB), -math.inf)
    logits[:, 5:8] = 0.0
    drawn = sample_batch(logits, [Row(SamplingParams(temperature=2.0), seed=s) for s in range(64)])
    assert set(drawn) == {5, 6, 7}


def test_top_p_stops_at_the_token_that_reaches_it():
    """Four equal tokens, each exactly a quarter: two reach one half, a third is too many."""
    logits = torch.full((64, VOCAB), -math.inf)
    logits[:, :4] = 0.0
    batch = [Row(SamplingParams(temperature=1.0, top_p=0.5), seed=s) for s in range(64)]
    assert set(sample_batch(logits, batch)) == {0, 1}
    assert sample_batch(logits, batch) == sample(logits, batch)

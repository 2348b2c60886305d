"""A row's token depends on its logits, its parameters, its seed and its index, on nothing else."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from llmlab.engine import sampler
from llmlab.engine.sampler import Row, allowed, logprobs_of, sample, uniform
from llmlab.sched.request import SamplingParams


def row(seed=0, index=0, history=(), banned=(), **params):
    return Row(SamplingParams(**params), seed, index, history, banned)


def draws(logits, count, make, at=0):
    """`count` draws of row `at`; `make(i)` gives the rows of draw i."""
    return [sample(logits, make(i))[at] for i in range(count)]


def test_greedy_is_exact_beside_a_random_row_and_ties_go_to_the_lowest_id():
    logits = torch.tensor([[1.0, 1.0, 0.0], [0.3, 0.2, 0.1]])
    mixed = draws(logits, 1000, lambda i: [row(), row(temperature=1.0, seed=i)])
    assert set(mixed) == {0}
    assert sample(logits[:1], [row()]) == [0]
    assert sample(logits[:1], [row(top_k=2, top_p=0.5, min_p=0.9)]) == [0]


def test_the_lowest_id_wins_a_tie_wherever_it_stands():
    for first in (0, 1, 17, 4095, 49_000):
        logits = torch.zeros(1, 49_152)
        logits[0, [first, 49_151]] = 2.0
        assert sample(logits, [row()]) == [first]
        assert sample(logits, [row(banned=[49_150])]) == [first]


def test_row_parameters_do_not_leak_to_neighbours():
    torch.manual_seed(0)
    logits = torch.randn(4, 100) * 0.3
    kinds = [
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0},
        {"temperature": 1.0, "top_k": 5, "top_p": 0.5},
        {"temperature": 0.01},
    ]
    seen = [set() for _ in kinds]
    for i in range(1000):
        rows = [row(seed=i, index=n, **kind) for n, kind in enumerate(kinds)]
        tokens = sample(logits, rows)
        for n, token in enumerate(tokens):
            seen[n].add(token)
        if i < 100:  # order and neighbours make no difference
            order = [2, 0, 3, 1]
            assert sample(logits[order], [rows[n] for n in order]) == [tokens[n] for n in order]
            assert [sample(logits[n : n + 1], [rows[n]])[0] for n in range(4)] == tokens
    assert seen[0] == {int(logits[0].argmax())}
    assert len(seen[1]) > 60
    top5 = set(logits[2].topk(5).indices.tolist())
    assert seen[2] <= top5
    alone = allowed(logits[2], SamplingParams(**kinds[2]))[1].tolist()
    assert seen[2] == set(alone)


@pytest.fixture
def even(monkeypatch):
    """Draw `index` meets the number (index + 1/2) / 1000: every thousandth of [0, 1), once."""
    monkeypatch.setattr(sampler, "uniform", lambda seed, index: (index + 0.5) / 1000)


def test_frequencies_are_the_softmax(even):
    """Exactly, over even numbers; that `uniform` is even has a test of its own."""
    logits = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()[None]
    tokens = draws(logits, 1000, lambda i: [row(temperature=1.0, index=i)])
    assert [tokens.count(token) for token in range(4)] == [100, 200, 300, 400]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_temperature_sharpens_and_flattens(even, temperature):
    logits = torch.tensor([[2.0, 0.0]])
    tokens = draws(logits, 1000, lambda i: [row(temperature=temperature, index=i)])
    expected = 1000 / (1 + math.exp(-2.0 / temperature))
    assert abs(tokens.count(0) - expected) <= 1


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"top_k": 2}, [3, 1]),
        ({"top_p": 0.39}, [3]),
        ({"top_p": 0.41}, [3, 1]),
        ({"top_p": 0.75}, [3, 1, 2]),
        ({"min_p": 0.5}, [1, 2, 3]),
        ({"min_p": 1.0}, [3]),
        ({"top_k": 3, "top_p": 0.5}, [3, 1]),
        ({"top_k": -1}, [0, 1, 2, 3]),
    ],
)
def test_the_allowed_set(params, expected):
    logits = torch.tensor([0.1, 0.3, 0.2, 0.4], dtype=torch.float64).log()
    probs, ids = allowed(logits, SamplingParams(temperature=1.0, **params))
    assert [i for i, p in zip(ids.tolist(), probs.tolist(), strict=True) if p > 0] == expected


def test_top_k_keeps_exactly_k_of_equal_ones_lowest_ids_first():
    _, ids = allowed(torch.zeros(10), SamplingParams(temperature=1.0, top_k=3))
    assert ids.tolist() == [0, 1, 2]


@given(
    st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=20),
    st.integers(0, 2**63 - 1),
    st.integers(0, 1000),
    st.floats(0.01, 5),
    st.integers(0, 5),
    st.floats(0.01, 1.0),
    st.floats(0.0, 1.0),
)
def test_a_masked_token_is_never_returned(values, seed, index, temperature, top_k, top_p, min_p):
    logits = torch.tensor([values])
    banned = list(range(0, len(values) - 1, 2))
    params = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    (token,) = sample(logits, [row(seed, index, banned=banned, **params)])
    assert token not in banned
    assert sample(logits, [row(banned=banned)])[0] not in banned
    logits[0, banned] = -torch.inf
    probs, ids = allowed(logits[0], SamplingParams(**params))
    assert token in ids[probs > 0].tolist()


def test_a_seeded_draw_is_keyed_by_seed_and_index():
    torch.manual_seed(1)
    logits = torch.randn(1, 500)

    def sequence(seed):
        return [sample(logits, [row(seed, i, temperature=0.8)])[0] for i in range(16)]

    assert sequence(42) == sequence(42)
    assert sequence(42) != sequence(43)
    beside = [
        sample(logits.repeat(2, 1), [row(i, 3, temperature=1.0), row(42, i, temperature=0.8)])[1]
        for i in range(16)
    ]
    assert beside == sequence(42)


def test_uniform_numbers_are_even_and_within_the_unit_interval():
    numbers = [uniform(seed, index) for seed in range(-50, 50) for index in range(100)]
    assert all(0 <= u < 1 for u in numbers)
    assert len(set(numbers)) == len(numbers)
    tenths = [sum(int(u * 10) == k for u in numbers) for k in range(10)]
    assert all(850 < n < 1150 for n in tenths)
    assert uniform(-(2**63), 0) != uniform(2**63 - 1, 0)


@pytest.mark.parametrize(("u", "token"), [(0.0, 1), (0.5, 3), (1 - 2**-53, 3)])
def test_a_draw_at_the_very_edge_does_not_hit_a_masked_token(monkeypatch, u, token):
    monkeypatch.setattr(sampler, "uniform", lambda seed, index: u)
    logits = torch.tensor([[0.0, 1.0, 0.0, 1.0, 0.0]])
    banned = [0, 2, 4]
    assert sample(logits, [row(temperature=1.0, banned=banned)]) == [token]


def test_the_repetition_penalty_lowers_seen_tokens_of_either_sign():
    logits = torch.tensor([[2.0, 1.5, -1.0]])
    assert sample(logits, [row(repetition_penalty=2.0, history=[0])]) == [1]
    assert sample(logits, [row(repetition_penalty=2.0, history=[0, 1])]) == [0]
    assert sample(logits, [row(repetition_penalty=2.0, history=[0, 0, 0])]) == [1]
    negative = torch.tensor([[-1.0, -1.5, -9.0]])
    assert sample(negative, [row(repetition_penalty=2.0, history=[0])]) == [1]
    assert logits.tolist() == [[2.0, 1.5, -1.0]]  # the caller's logits are untouched


def test_logprobs_are_the_models_own_with_rank_and_top():
    logits = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()
    got = logprobs_of(logits, 1, 2)
    assert got.logprob == pytest.approx(math.log(0.25))
    assert got.rank == 2
    assert [i for i, _ in got.top] == [0, 1]
    assert got.top[0][1] == pytest.approx(math.log(0.5))
    assert logprobs_of(logits, 0, 0).top == []


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_named_not_sampled(bad):
    with pytest.raises(ValueError, match="not finite"):
        sample(torch.tensor([[0.0, bad]]), [row()])

"""A learner's paged decode: right ones pass and drive the engine, each usual mistake is named."""

from __future__ import annotations

import random

import pytest
import torch

from llmlab.config import EngineConfig
from llmlab.engine import Engine, load_model
from llmlab.labs.own_attention import (
    attention_from,
    check_paged_decode,
    dense_decode,
    random_case,
)
from llmlab.sched import SamplingParams


def paged(q, k_cache, v_cache, table, context_len, *, less=0, scale=-0.5, wide=False, inter=False):
    """Right as it stands; each keyword makes one usual mistake."""
    size, kv_heads = k_cache.shape[1:3]
    group = q.shape[1] // kv_heads
    out = torch.empty_like(q)
    for r, context in enumerate(context_len.tolist()):
        blocks = table[r, : -(-context // size)].long()
        end = len(blocks) * size if wide else max(1, context - less)
        k = k_cache[blocks].flatten(0, 1)[:end]
        v = v_cache[blocks].flatten(0, 1)[:end]
        heads = torch.arange(q.shape[1])
        of = heads % kv_heads if inter else heads // group
        scores = torch.einsum("hd,chd->hc", q[r], k[:, of]) * q.shape[2] ** scale
        if wide:
            scores[:, context:] = -torch.inf
        out[r] = torch.einsum("hc,chd->hd", scores.softmax(-1), v[:, of])
    return out


def clean_in_place(q, k_cache, v_cache, table, context_len):
    k_cache.nan_to_num_()
    v_cache.nan_to_num_()
    return paged(q, k_cache, v_cache, table, context_len)


def test_a_right_one_passes():
    result = check_paged_decode(paged)
    assert result.state == "correct", result
    assert result.score == 1.0


def test_the_reference_agrees_with_torch_s_own_attention():
    case = random_case(random.Random(5))
    for r, (k, v) in enumerate(zip(case.keys, case.values, strict=True)):
        group = case.q.shape[1] // k.shape[1]
        k, v = (x.double().repeat_interleave(group, 1).transpose(0, 1) for x in (k, v))
        theirs = torch.nn.functional.scaled_dot_product_attention(case.q[r].double()[:, None], k, v)
        mine = dense_decode(case.q, case.keys, case.values)[r]
        torch.testing.assert_close(mine, theirs[:, 0])


MISTAKES = [
    (lambda *a: paged(*a, less=1), "is wrong for request"),
    (lambda *a: paged(*a, scale=0), "scale"),
    (lambda *a: paged(*a, inter=True), "groups"),
    (lambda *a: paged(*a, wide=True), "never written"),
    (lambda *a: paged(*a)[:, :1].mean(-1), "must be a tensor of shape"),
    (lambda *a: 3, "must be a tensor"),
    (lambda *a: a[9], "IndexError"),
    (clean_in_place, "only reads"),
]


def test_each_usual_mistake_is_named():
    for wrong, said in MISTAKES:
        result = check_paged_decode(wrong)
        assert result.state == "incorrect", said
        assert said in result.message


def test_a_stub_is_not_answered_yet():
    def stub(*_):
        raise NotImplementedError

    assert check_paged_decode(stub).state == "not answered yet"
    assert check_paged_decode(lambda *_: ...).state == "not answered yet"


def test_cases_hold_nan_ragged_contexts_and_shared_blocks():
    rng = random.Random(0)
    cases = [random_case(rng) for _ in range(60)]
    assert all(case.k_cache.isnan().any() for case in cases)
    assert any(len(set(case.context_len.tolist())) > 2 for case in cases)
    shared = [c for c in cases if len(c.keys) > 1 and len(set(c.block_table[:, 0].tolist())) == 1]
    assert shared


@pytest.fixture(scope="module")
def model():
    return load_model("tiny")


def answers(model, attention):
    config = EngineConfig(
        max_num_batched_tokens=24, block_size=4, num_blocks=64, enable_prefix_caching=True
    )
    engine = Engine(model, config, attention=attention)
    tokens: dict[str, list[int]] = {}
    for i, size in enumerate((3, 30, 1, 11)):
        ids = [(7 * i + 3 * p) % 250 for p in range(size)]
        engine.add(ids, SamplingParams(max_tokens=10, ignore_eos=True), request_id=f"r{i}")
    while engine.has_work:
        for out in engine.step():
            tokens.setdefault(out.request_id, []).extend(out.token_ids)
    return tokens


def test_the_engine_gives_the_same_greedy_tokens_with_it(model):
    calls = []

    def counted(*given):
        calls.append(given[0].shape[0])
        return paged(*given)

    assert answers(model, attention_from(counted)) == answers(model, "torch")
    assert max(calls) == 4


def test_the_engine_shows_a_wrong_one(model):
    wrong = attention_from(lambda *a: paged(*a, less=2))
    assert answers(model, wrong) != answers(model, "torch")
    with pytest.raises(ValueError, match="shape"):
        answers(model, attention_from(lambda *a: a[0][:, :1]))

"""Batch, pool and attention: only what a request wrote is read, only its slots are written."""

from __future__ import annotations

import math
import random

import pytest
import torch

from llmlab.config import ModelConfig
from llmlab.engine.attention import paged_attention
from llmlab.engine.batch import build_batch, make_batch
from llmlab.engine.kv_cache import KVCache
from llmlab.sched.plan import StepPlan
from llmlab.sched.request import Request

SHAPE = ModelConfig("s", 1, 32, 32, 4, 2, 8, 50, 512)


def request(prompt, computed=0, blocks=(), output=()):
    r = Request("r", list(prompt))
    r.num_computed_tokens, r.block_ids = computed, list(blocks)
    r.output_token_ids = list(output)
    return r


def table_batch(lengths, tables, block_size, query_lens=None):
    """A batch whose requests have these context lengths; the last n positions are queries."""
    query_lens = query_lens or [1] * len(lengths)
    positions = [p for c, n in zip(lengths, query_lens, strict=True) for p in range(c - n, c)]
    rows = [r for r, n in enumerate(query_lens) for _ in range(n)]
    slots = [
        tables[r][p // block_size] * block_size + p % block_size
        for r, p in zip(rows, positions, strict=True)
    ]
    starts = [0]
    for n in query_lens:
        starts.append(starts[-1] + n)
    ends = [s - 1 for s in starts[1:]]
    return make_batch([0] * len(rows), positions, slots, starts, lengths, tables, ends)


def dense(q, k, v):
    """Attention of q [n, Hq, D] over k, v [C, Hkv, D] by the definition, in float64."""
    n, heads, dim = q.shape
    context, kv_heads, _ = k.shape
    out = torch.empty(n, heads, dim, dtype=torch.float64)
    for i in range(n):
        seen = context - n + i + 1
        for h in range(heads):
            kh = h // (heads // kv_heads)
            scores = k[:seen, kh].double() @ q[i, h].double() / math.sqrt(dim)
            out[i, h] = torch.softmax(scores, 0) @ v[:seen, kh].double()
    return out


# ---------------------------------------------------------------- batch


def test_positions_of_a_later_chunk_start_at_what_is_computed():
    prompt = list(range(100, 112))
    chunks = [(0, 5), (5, 5), (10, 2)]
    for first, n in chunks:
        r = request(prompt, computed=first, blocks=[7, 3, 9])
        batch = build_batch(StepPlan([(r, n)]), 4)
        assert batch.positions.tolist() == list(range(first, first + n))
        assert batch.input_ids.tolist() == prompt[first : first + n]
        assert batch.context_lens == [first + n]
        assert batch.sample_rows.tolist() == ([1] if first == 10 else [])


def test_positions_after_a_prefix_hit_start_behind_it():
    batch = build_batch(StepPlan([(request(range(12), computed=8, blocks=[5, 6, 2]), 4)]), 4)
    assert batch.positions.tolist() == [8, 9, 10, 11]
    assert batch.slots.tolist() == [8, 9, 10, 11]


def test_a_slot_is_block_times_size_plus_offset():
    r = request(range(10), blocks=[4, 0, 2])
    batch = build_batch(StepPlan([(r, 10)]), 4)
    assert batch.slots.tolist() == [16, 17, 18, 19, 0, 1, 2, 3, 8, 9]


def test_requests_lie_one_after_the_other_without_padding():
    a = request(range(3), computed=3, blocks=[0, 1], output=[40])  # a decode
    b = request(range(10, 20), computed=4, blocks=[2, 3, 4, 5])  # a chunk that is not the last
    c = request(range(20, 22), blocks=[6])  # a whole prompt
    batch = build_batch(StepPlan([(a, 1), (b, 3), (c, 2)]), 3)
    assert batch.input_ids.tolist() == [40, 14, 15, 16, 20, 21]
    assert batch.query_start.tolist() == [0, 1, 4, 6]
    assert batch.context_len.tolist() == [4, 7, 2]
    assert batch.sample_rows.tolist() == [0, 5]
    assert batch.block_table.tolist() == [[0, 1, 0, 0], [2, 3, 4, 5], [6, 0, 0, 0]]


def test_a_spare_block_does_not_lengthen_the_context():
    r = request(range(16), computed=15, blocks=[1, 2])
    batch = build_batch(StepPlan([(r, 1)]), 16)
    assert batch.context_lens == [16]
    kv = KVCache(SHAPE, 3, 16)
    kv.k.normal_(), kv.v.normal_()
    q = torch.randn(1, 4, 8)
    expected = paged_attention(q, *kv.layer(0), batch)
    kv.k[:, 2], kv.v[:, 2] = 1e30, 1e30  # the spare block holds garbage
    assert torch.equal(paged_attention(q, *kv.layer(0), batch), expected)
    r.block_ids.pop()
    alone = build_batch(StepPlan([(r, 1)]), 16)
    assert torch.equal(paged_attention(q, *kv.layer(0), alone), expected)


# ---------------------------------------------------------------- pool


def test_only_the_mapped_slots_change():
    kv = KVCache(SHAPE, 4, 4)
    kv.k.fill_(5), kv.v.fill_(6)
    k, v = torch.randn(3, 2, 8), torch.randn(3, 2, 8)
    kv.write(0, k, v, torch.tensor([3, 9, 4]))
    flat = kv.k[0].flatten(0, 1)
    assert torch.equal(flat[[3, 9, 4]], k)
    assert torch.equal(kv.v[0].flatten(0, 1)[[3, 9, 4]], v)
    others = [i for i in range(16) if i not in (3, 9, 4)]
    assert bool((flat[others] == 5).all())


def test_padding_slots_write_nothing_not_even_the_first_or_last_slot():
    kv = KVCache(SHAPE, 4, 4)
    kv.k.fill_(5), kv.v.fill_(6)
    before = kv.k.clone(), kv.v.clone()
    k = v = torch.ones(8, 2, 8)
    kv.write(0, k, v, torch.tensor([6, 10, 1, -1, -1, -1, -1, -1]))
    changed = (kv.k != before[0]).flatten(3).any(-1)[0, :, :, ...].reshape(16)
    assert changed.nonzero().flatten().tolist() == [1, 6, 10]
    assert ((kv.v != before[1]).flatten(3).any(-1).reshape(16)).sum() == 3


# ---------------------------------------------------------------- attention


@pytest.mark.parametrize("garbage", [math.nan, math.inf, 1e4])
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("kind", ["decode", "prefill", "mixed"])
def test_garbage_in_unwritten_slots_is_harmless(garbage, block_size, kind):
    rng = random.Random(block_size)
    lengths = sorted({1, max(1, block_size - 1), block_size, block_size + 1, 2 * block_size - 1})
    queries = {
        "decode": [1] * len(lengths),
        "prefill": lengths,
        "mixed": [rng.randint(1, c) for c in lengths],
    }[kind]
    free = rng.sample(range(40), 40)
    tables = [[free.pop() for _ in range(-(-c // block_size))] for c in lengths]
    kv = KVCache(SHAPE, 40, block_size)
    kv.k.fill_(garbage), kv.v.fill_(garbage)
    torch.manual_seed(0)
    keys = [torch.randn(c, 2, 8) for c in lengths]
    values = [torch.randn(c, 2, 8) for c in lengths]
    for table, k, v in zip(tables, keys, values, strict=True):
        slots = [table[p // block_size] * block_size + p % block_size for p in range(len(k))]
        kv.write(0, k, v, torch.tensor(slots))
    batch = table_batch(lengths, tables, block_size, queries)
    q = torch.randn(sum(queries), 4, 8)
    got = paged_attention(q, *kv.layer(0), batch)
    expected = torch.cat(
        [dense(p, k, v) for p, k, v in zip(q.split(queries), keys, values, strict=True)]
    )
    torch.testing.assert_close(got.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 2), (6, 1)])
def test_query_heads_share_key_heads_in_order(heads, kv_heads):
    shape = ModelConfig("s", 1, 32, 32, heads, kv_heads, 16, 50, 512)
    kv = KVCache(shape, 8, 4, dtype=torch.float64)
    kv.k.normal_(), kv.v.normal_()
    batch = table_batch([9, 13], [[3, 1, 6], [0, 2, 7, 5]], 4, [3, 1])
    q = torch.randn(4, heads, 16, dtype=torch.float64)
    got = paged_attention(q, *kv.layer(0), batch)
    for table, context, rows in (([3, 1, 6], 9, slice(0, 3)), ([0, 2, 7, 5], 13, slice(3, 4))):
        k = kv.k[0, table].flatten(0, 1)[:context]
        v = kv.v[0, table].flatten(0, 1)[:context]
        torch.testing.assert_close(got[rows], dense(q[rows], k, v))

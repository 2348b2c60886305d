"""Static step buffers: padding, tables that are only appended to, and cutting a step in pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llmlab.engine.batch import build_batch
from llmlab.engine.passes import cut_batch
from llmlab.engine.step_buffers import (
    StepBuffers,
    graph_sizes,
    is_decode,
    padded_size,
)
from llmlab.sched.plan import StepPlan
from llmlab.sched.request import Request

FIELDS = ("input_ids", "positions", "slots", "query_start", "context_len", "sample_rows")
BLOCK = 4


def make_request(prompt: int, output: int, computed: int, first_block: int = 0) -> Request:
    total = prompt + output
    request = Request("r", list(range(10, 10 + prompt)))
    request.output_token_ids = list(range(50, 50 + output))
    request.num_computed_tokens = computed
    request.block_ids = list(range(first_block, first_block + -(-total // BLOCK)))
    return request


def same(got, want) -> None:
    for name in FIELDS:
        assert getattr(got, name).tolist() == getattr(want, name).tolist(), name
    assert got.query_lens == want.query_lens
    assert got.context_lens == want.context_lens
    for r, context in enumerate(want.context_lens):
        used = -(-context // BLOCK)
        assert got.block_table[r, :used].tolist() == want.block_table[r, :used].tolist()


@st.composite
def plans(draw):
    scheduled = []
    for r in range(draw(st.integers(1, 4))):
        prompt, output = draw(st.integers(1, 12)), draw(st.integers(0, 5))
        computed = draw(st.integers(0, prompt + output - 1))
        n = draw(st.integers(1, prompt + output - computed))
        scheduled.append((make_request(prompt, output, computed, 10 * r), n))
    return StepPlan(scheduled)


@given(plans())
def test_the_buffers_hold_what_build_batch_builds(plan):
    buffers = StepBuffers(80, 4, 8)
    same(buffers.fill(plan, BLOCK), build_batch(plan, BLOCK))


@given(st.lists(plans(), min_size=2, max_size=5))
def test_a_fill_leaves_nothing_of_the_step_before(steps):
    buffers = StepBuffers(80, 4, 8)
    for plan in steps:
        same(buffers.fill(plan, BLOCK), build_batch(plan, BLOCK))


def test_padded_decode_rows_write_nothing_and_see_nothing():
    buffers = StepBuffers(8, 8, 8)
    plan = StepPlan([(make_request(6, 1, 6), 1), (make_request(3, 2, 4, 5), 1)])
    batch = buffers.fill(plan, BLOCK, pad_to=4)
    assert batch.num_requests == 2
    graph = buffers.decode_batch(4)
    assert graph.input_ids.tolist() == [50, 51, 0, 0]
    assert graph.slots.tolist() == [6, 24, -1, -1]
    assert graph.context_len.tolist() == [7, 5, 0, 0]
    assert graph.query_start.tolist() == [0, 1, 2, 3, 4]
    assert graph.sample_rows.tolist() == [0, 1, 2, 3]


def test_a_graph_reads_the_same_memory_in_every_step():
    buffers = StepBuffers(8, 4, 8)
    addresses = set()
    for output in (1, 2, 3):
        plan = StepPlan([(make_request(6, output, 5 + output), 1)])
        batch = buffers.fill(plan, BLOCK)
        addresses.add(tuple(getattr(batch, name).data_ptr() for name in FIELDS))
    assert len(addresses) == 1


def test_blocks_are_appended_and_rewritten_after_a_preemption():
    buffers = StepBuffers(40, 2, 8)
    request = make_request(8, 4, 8)
    for _ in range(2):  # both host buffers know the row
        buffers.fill(StepPlan([(request, 1)]), BLOCK)
    request.block_ids.append(29)
    assert buffers.fill(StepPlan([(request, 1)]), BLOCK).block_table[0, :4].tolist() == [
        0,
        1,
        2,
        29,
    ]
    request.block_ids = [20, 21, 22]
    request.num_preemptions += 1
    request.num_computed_tokens = 0
    batch = buffers.fill(StepPlan([(request, 12)]), BLOCK)
    assert batch.block_table[0, :3].tolist() == [20, 21, 22]


def test_a_row_that_another_request_takes_over_is_rewritten():
    buffers = StepBuffers(40, 2, 8)
    first, second = make_request(4, 1, 4), make_request(4, 1, 4, first_block=7)
    for request in (first, first, second, second, first):
        batch = buffers.fill(StepPlan([(request, 1)]), BLOCK)
        assert batch.block_table[0, :2].tolist() == request.block_ids


def test_a_decode_step_is_one_where_every_request_gets_its_next_token():
    decode = (make_request(6, 1, 6), 1)
    last_prompt_token = (make_request(6, 0, 5), 1)
    one_token_chunk = (make_request(6, 0, 2), 1)
    assert is_decode(StepPlan([decode, last_prompt_token]))
    assert not is_decode(StepPlan([decode, one_token_chunk]))
    assert not is_decode(StepPlan([decode, (make_request(6, 0, 4), 2)]))


@given(st.integers(1, 512))
def test_every_batch_has_a_captured_size_and_at_most_a_third_is_padding(most):
    sizes = graph_sizes(most)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == most
    for requests in range(1, most + 1):
        size = padded_size(requests, sizes)
        assert requests <= size <= max(requests + 1, requests * 1.5)
    assert len(sizes) <= 20


def test_a_batch_beyond_all_sizes_has_none():
    assert padded_size(9, [1, 2, 4, 8]) is None
    assert padded_size(1, []) is None


@settings(max_examples=60)
@given(plans(), st.integers(1, 9))
def test_a_cut_step_is_the_same_tokens_in_order(plan, most):
    batch = build_batch(plan, BLOCK)
    pieces = cut_batch(batch, most)
    assert all(piece.num_tokens <= most for piece in pieces)
    for name in ("input_ids", "positions", "slots"):
        joined = torch.cat([getattr(piece, name) for piece in pieces])
        assert joined.tolist() == getattr(batch, name).tolist()
    sampled = [piece.input_ids[i].item() for piece in pieces for i in piece.sample_rows.tolist()]
    assert sampled == batch.input_ids[batch.sample_rows].tolist()
    for piece in pieces:
        for r, (n, context) in enumerate(zip(piece.query_lens, piece.context_lens, strict=True)):
            start = piece.query_start[r].item()
            rows = slice(start, start + n)
            # Each token sees exactly its own past, and its slot is found through the table.
            assert piece.positions[rows].tolist() == list(range(context - n, context))
            position = piece.positions[rows]
            blocks = piece.block_table[r].long()[position // BLOCK]
            assert (blocks * BLOCK + position % BLOCK).tolist() == piece.slots[rows].tolist()


def test_a_plan_too_large_for_the_buffers_is_seen():
    buffers = StepBuffers(4, 2, 8)
    assert buffers.fits(StepPlan([(make_request(4, 0, 0), 4)]))
    assert not buffers.fits(StepPlan([(make_request(5, 0, 0), 5)]))
    assert not buffers.fits(StepPlan([(make_request(1, 0, 0), 1)] * 3))


def test_clearing_makes_every_row_padding():
    buffers = StepBuffers(8, 4, 8)
    buffers.fill(StepPlan([(make_request(6, 1, 6), 1)]), BLOCK)
    buffers.clear(4)
    graph = buffers.decode_batch(4)
    assert graph.slots.tolist() == [-1] * 4
    assert graph.context_len.tolist() == [0] * 4


@pytest.mark.parametrize("size", [1, 3])
def test_decode_batches_are_views(size):
    buffers = StepBuffers(8, 4, 8)
    assert buffers.decode_batch(size).slots.data_ptr() == buffers.decode_batch(4).slots.data_ptr()


@given(plans())
def test_a_padded_mixed_step_tells_the_device_who_decodes(plan):
    buffers = StepBuffers(80, 6, 8)
    batch = buffers.fill(plan, BLOCK, pad_tokens=72)
    same(batch, build_batch(plan, BLOCK))
    padded = buffers.mixed_batch(72)
    decode_context, prefill_start = (t.tolist() for t in padded.memo["split"])
    lens, contexts = batch.query_lens, batch.context_lens
    decodes = next((i for i, n in enumerate(lens) if n != 1), len(lens))
    assert decode_context == contexts[:decodes] + [0] * (6 - decodes)
    pieces = [b - a for a, b in pairwise(prefill_start)]
    assert pieces == [0] * decodes + lens[decodes:] + [0] * (6 - len(lens))
    assert prefill_start[0] == decodes
    assert padded.slots.tolist()[sum(lens) :] == [-1] * (72 - sum(lens))
    assert padded.context_len.tolist() == contexts + [0] * (6 - len(lens))
    assert max(padded.sample_rows.tolist()) < 72


def test_sample_rows_of_a_larger_step_before_stay_inside_a_smaller_one():
    buffers = StepBuffers(80, 2, 16)
    for _ in range(2):
        buffers.fill(StepPlan([(make_request(40, 0, 0), 40)]), BLOCK, pad_tokens=64)
    buffers.fill(StepPlan([(make_request(9, 0, 0), 3)]), BLOCK, pad_tokens=4)
    assert buffers.mixed_batch(4).sample_rows.tolist() == [3, 0]
    buffers.clear_mixed(16)
    assert buffers.mixed_batch(16).slots.tolist() == [-1] * 16
    assert buffers.mixed_batch(16).context_len.tolist() == [0, 0]

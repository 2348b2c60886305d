"""The attention kernels against their float64 spec, on poisoned caches."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmlab.kernels.paged_attention import (
    leading_decodes,
    paged_attention,
    paged_attention_spec,
    triton_attention,
)
from llmlab.kernels.tuning import Tiles

SMALL = Tiles(32, 32, 4, 1)  # small tiles, so that short contexts have many


def dense(q, k, v, context):
    """Textbook causal attention of one request in float64; shares no code with the spec."""
    n, heads, dim = q.shape
    group = heads // k.shape[1]
    out = torch.zeros(q.shape, dtype=torch.float64)
    for i in range(n):
        for h in range(heads):
            seen = context - n + i + 1
            s = k[:seen, h // group].double() @ q[i, h].double() / math.sqrt(dim)
            out[i, h] = (
                (s - s.max()).exp() / (s - s.max()).exp().sum() @ v[:seen, h // group].double()
            )
    return out


def test_the_spec_is_textbook_attention(paged):
    case = paged([5], [21], page=8, dtype=torch.float64)
    flat = [c[case.block_table[0].long()].flatten(0, 1) for c in (case.k_cache, case.v_cache)]
    expected = dense(case.q.cpu(), flat[0].cpu(), flat[1].cpu(), 21)
    torch.testing.assert_close(paged_attention_spec(*case.args).cpu(), expected)


def test_a_mixed_batch_of_decodes_and_chunks_equals_the_spec(paged, close):
    case = paged([1, 1, 19, 40], [33, 70, 35, 100], heads=6)
    result = paged_attention(*case.args, num_decodes=2, splits=2, tiles=SMALL)
    close(result, paged_attention_spec(*case.args))


def test_the_prefill_kernel_takes_decodes_anywhere_in_the_batch(paged, close):
    case = paged([3, 1, 17, 1], [3, 40, 17, 9], heads=6)
    close(paged_attention(*case.args, tiles=SMALL), paged_attention_spec(*case.args))


def test_the_default_tiles_give_the_same_answer(paged, close):
    case = paged([1, 130], [150, 140], heads=2, kv_heads=1, dim=128)
    close(paged_attention(*case.args, num_decodes=1), paged_attention_spec(*case.args))


@pytest.mark.parametrize("poison", [math.nan, math.inf, -6e4])
def test_unwritten_slots_do_not_leak(paged, close, poison):
    case = paged([1, 9], [17, 33], poison=poison)
    result = paged_attention(*case.args, num_decodes=1, splits=2, tiles=SMALL)
    close(result, paged_attention_spec(*case.args))


def test_a_padded_decode_row_gets_zeros_and_reads_nothing(paged, close):
    case = paged([1, 1, 1], [20, 0, 0])
    for splits in (1, 4):
        result = paged_attention(*case.args, num_decodes=3, splits=splits, tiles=SMALL)
        assert (result[1:] == 0).all()
        first = [case.q[:1], *case.args[1:3], case.query_start[:2], case.context_len[:1]]
        close(result[:1], paged_attention_spec(*first, case.block_table[:1]))


def test_padded_requests_without_tokens_are_ignored(paged, close):
    case = paged([4, 0, 3, 0, 0], [4, 0, 30, 0, 0])
    close(paged_attention(*case.args, tiles=SMALL), paged_attention_spec(*case.args))


def test_rows_that_no_request_owns_are_left_alone(paged):
    case = paged([2], [2])
    q = torch.cat((case.q, torch.full_like(case.q, math.nan)))
    out = torch.full_like(q, 7.0)
    paged_attention(q, *case.args[1:], out=out, tiles=SMALL)
    assert (out[2:] == 7.0).all()


def test_scores_beyond_half_precision_stay_finite(paged, close):
    case = paged([1, 5], [40, 40], dim=128, scale=60.0)  # q . k reaches 10^5 > 65504
    result = paged_attention(*case.args, num_decodes=1, splits=1, tiles=SMALL)
    close(result, paged_attention_spec(*case.args))


def test_any_cut_into_chunks_gives_the_tokens_of_the_whole(paged, close):
    whole = paged([37], [37], heads=3, kv_heads=1, page=8)
    expected = paged_attention(*whole.args, tiles=SMALL)
    for cuts in ([1, 36], [8, 8, 21], [31, 5, 1]):
        done = 0
        for n in cuts:
            start = torch.tensor([0, n], dtype=torch.int32, device=whole.q.device)
            context = torch.tensor([done + n], dtype=torch.int32, device=whole.q.device)
            part = (whole.q[done : done + n], whole.k_cache, whole.v_cache, start, context)
            result = paged_attention(*part, whole.block_table, tiles=SMALL)
            close(result, expected[done : done + n])
            done += n


def test_strided_queries_and_caches_are_read_by_their_strides(paged, close):
    case = paged([1, 6], [18, 20])
    wide_q = torch.full((7, 12, 64), math.nan, dtype=case.q.dtype, device=case.q.device)
    wide_q[:, 2:6] = case.q  # as a slice of a fused qkv row
    both = torch.stack((case.k_cache, case.v_cache), dim=2)  # [N, B, 2, Hkv, D]
    result = paged_attention(
        wide_q[:, 2:6], both[:, :, 0], both[:, :, 1], *case.args[3:], num_decodes=1, tiles=SMALL
    )
    close(result, paged_attention_spec(*case.args))


def test_bad_shapes_are_refused_by_name(paged):
    case = paged([2], [4])
    q, k, v, *rest = case.args
    with pytest.raises(ValueError, match="3 heads"):
        paged_attention(q[:, :3], k, v, *rest)
    with pytest.raises(ValueError, match="head dim 64"):
        paged_attention(q, k[..., :32], v[..., :32], *rest)
    with pytest.raises(ValueError, match="num_decodes = 2"):
        paged_attention(*case.args, num_decodes=2)
    with pytest.raises(ValueError, match=r"q\.stride\(-1\) = 4"):
        paged_attention(q.transpose(1, 2).contiguous().transpose(1, 2), k, v, *rest)


def test_leading_decodes_counts_only_the_front():
    assert leading_decodes([1, 1, 5, 1]) == 2
    assert leading_decodes([5, 1]) == 0
    assert leading_decodes([1, 1]) == 2


def test_the_engines_attention_takes_a_batch(paged, close):
    case = paged([1, 5], [18, 20])

    class Batch:
        query_start, context_len, block_table = case.args[3:]
        query_lens = [1, 5]  # noqa: RUF012
        memo = {}  # noqa: RUF012

    close(triton_attention(*case.args[:3], Batch()), paged_attention_spec(*case.args))


LENS = st.integers(1, 40)


@st.composite
def shapes(draw):
    kv_heads = draw(st.integers(1, 2))
    decodes = draw(st.integers(0, 2))
    chunks = draw(st.lists(LENS, min_size=0 if decodes else 1, max_size=2))
    queries = [1] * decodes + chunks
    page = draw(st.sampled_from([8, 16, 32, 64]))
    # Contexts at and around page and tile edges, and anything between.
    edge = st.sampled_from([0, 1, page - 1, page, page + 1, 2 * page, 31, 32, 33, 63, 64, 65])
    contexts = [n + draw(st.one_of(edge, st.integers(0, 150))) for n in queries]
    return {
        "query_lens": queries,
        "context_lens": contexts,
        "heads": kv_heads * draw(st.sampled_from([1, 2, 3, 4, 7, 8])),
        "kv_heads": kv_heads,
        "dim": draw(st.sampled_from([64, 80, 96, 112, 128])),
        "page": page,
        "dtype": draw(
            st.sampled_from([torch.float16, torch.float16, torch.float32, torch.bfloat16])
        ),
        "seed": draw(st.integers(0, 9)),
    }, decodes


any_shape = given(
    shape=shapes(), splits=st.sampled_from([1, 2, 4]), window=st.sampled_from([0, 0, 0, 1, 9, 40])
)
interpreted = settings(
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def equals_the_spec(paged, close, shape, splits, window):
    kwargs, decodes = shape
    case = paged(**kwargs)
    result = paged_attention(
        *case.args, num_decodes=decodes, splits=splits, window=window, tiles=SMALL
    )
    close(result, paged_attention_spec(*case.args, window))


@pytest.mark.slow
@settings(interpreted, max_examples=60)
@any_shape
def test_any_shape_equals_the_spec(paged, close, shape, splits, window):
    equals_the_spec(paged, close, shape, splits, window)


@pytest.mark.full
@settings(interpreted, max_examples=400)
@any_shape
def test_many_more_shapes_equal_the_spec(paged, close, shape, splits, window):
    equals_the_spec(paged, close, shape, splits, window)


@pytest.mark.slow
@pytest.mark.parametrize("dim", [64, 80, 96, 112, 128])
@pytest.mark.parametrize("group", [1, 3, 8])
def test_every_head_shape_at_every_edge(paged, close, dim, group):
    contexts = [1, 15, 16, 17, 31, 32, 33]
    case = paged([1] * 7, contexts, heads=group, kv_heads=1, dim=dim)
    decode = paged_attention(*case.args, num_decodes=7, splits=1, tiles=SMALL)
    prefill = paged_attention(*case.args, tiles=SMALL)
    expected = paged_attention_spec(*case.args)
    close(decode, expected)
    close(prefill, expected)

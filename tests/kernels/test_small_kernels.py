"""Norm, RoPE, KV write, activation and the fused kernel against their float64 specs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmlab.kernels.activation import silu_mul, silu_mul_spec
from llmlab.kernels.fused import rope_and_write, rope_and_write_spec
from llmlab.kernels.kv_write import kv_write, kv_write_spec
from llmlab.kernels.norm import rms_norm, rms_norm_spec
from llmlab.kernels.rope import rope, rope_spec, rope_table

DTYPES = [torch.float16, torch.float32, torch.bfloat16]


def random(*shape: int, dtype: torch.dtype, device: str, scale: float = 1.0) -> torch.Tensor:
    gen = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(*shape, generator=gen) * scale).to(dtype).to(device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 40, 576, 1024])
def test_rms_norm_equals_the_spec(device, close, dtype, size):
    x = random(3, size, dtype=dtype, device=device)
    weight = random(size, dtype=dtype, device=device)
    close(rms_norm(x, weight, 1e-5), rms_norm_spec(x, weight, 1e-5)[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_adds_the_residual_and_leaves_the_sum_there(device, close, dtype):
    x = random(5, 96, dtype=dtype, device=device)
    weight, residual = torch.ones(96, dtype=dtype, device=device), x.flip(0).clone()
    normed, total = rms_norm_spec(x, weight, 1e-5, residual)
    close(rms_norm(x, weight, 1e-5, residual), normed)
    close(residual, total)


def test_rms_norm_of_huge_half_precision_rows_does_not_overflow(device, close):
    x = torch.full((2, 64), 6e4, dtype=torch.float16, device=device)
    weight = torch.ones(64, dtype=torch.float16, device=device)
    close(rms_norm(x, weight, 1e-5), torch.ones(2, 64, dtype=torch.float64, device=device))


def test_rms_norm_reads_rows_by_their_stride(device, close):
    wide = random(4, 200, dtype=torch.float16, device=device)
    weight = torch.ones(72, dtype=torch.float16, device=device)
    close(rms_norm(wide[:, 8:80], weight, 1e-5), rms_norm_spec(wide[:, 8:80], weight, 1e-5)[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 96, 1024, 1500])
def test_silu_mul_equals_the_spec(device, close, dtype, size):
    gate_up = random(3, 2 * size, dtype=dtype, device=device, scale=3.0)
    close(silu_mul(gate_up), silu_mul_spec(gate_up))


def test_silu_mul_of_large_gates_is_finite(device, close):
    gate_up = torch.tensor([[-300.0, 300.0, 2.0, 2.0]], dtype=torch.float16, device=device)
    close(silu_mul(gate_up), silu_mul_spec(gate_up))


def test_silu_mul_refuses_an_odd_row(device):
    with pytest.raises(ValueError, match="must be even"):
        silu_mul(torch.zeros(1, 3, device=device))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [64, 80, 96, 128])
def test_rope_equals_the_spec(device, close, dtype, dim):
    table = rope_table(50, dim, 10_000.0, device)
    x = random(5, 3, dim, dtype=dtype, device=device)
    positions = torch.tensor([0, 1, 49, 7, 7], device=device)
    expected = rope_spec(x, positions, table)
    rope(x, positions, table)
    close(x, expected)


def test_rope_of_a_long_prefill_takes_the_wide_tiles(device, close):
    table = rope_table(300, 64, 10_000.0, device)
    x = random(259, 1, 64, dtype=torch.float16, device=device)
    positions = torch.arange(259, device=device)
    expected = rope_spec(x, positions, table)
    rope(x, positions, table)
    close(x, expected)


def test_scores_after_rope_depend_on_distance_alone(device):
    table = rope_table(200, 64, 10_000.0, device)
    q, k = (random(1, 1, 64, dtype=torch.float32, device=device, scale=s) for s in (1.0, 0.5))

    def score(at_q: int, at_k: int) -> float:
        a, b = q.clone(), k.clone()
        rope(a, torch.tensor([at_q], device=device), table)
        rope(b, torch.tensor([at_k], device=device), table)
        return (a * b).sum().item()

    assert score(17, 9) == pytest.approx(score(118, 110), abs=1e-4)
    assert score(17, 9) != pytest.approx(score(17, 10), abs=1e-4)


def test_a_slot_of_minus_one_writes_nothing(device):
    k, v = (random(4, 2, 64, dtype=torch.float16, device=device) for _ in range(2))
    caches = [torch.zeros(3, 8, 2, 64, dtype=torch.float16, device=device) for _ in range(2)]
    expected = [c.clone() for c in caches]
    slots = torch.tensor([9, -1, 23, 0], device=device)
    kv_write(k, v, *caches, slots)
    kv_write_spec(k, v, *expected, slots)
    for got, want in zip(caches, expected, strict=True):
        assert torch.equal(got, want)
        assert (got.flatten(0, 1).abs().sum((1, 2)) > 0).sum() == 3


def test_kv_write_refuses_more_slots_than_rows(device):
    k = torch.zeros(2, 1, 64, device=device)
    cache = torch.zeros(1, 8, 1, 64, device=device)
    with pytest.raises(ValueError, match="at least as many rows as slots"):
        kv_write(k, k, cache, cache, torch.zeros(3, dtype=torch.int64, device=device))


@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    dim=st.sampled_from([64, 80, 96, 128]),
    group=st.sampled_from([1, 3, 4]),
    kv_heads=st.integers(1, 2),
    page=st.sampled_from([8, 16, 64]),
    tokens=st.integers(1, 6),
    norm=st.booleans(),
    dtype=st.sampled_from(DTYPES),
)
def test_the_fused_kernel_is_norm_then_rope_then_write(
    device, close, dim, group, kv_heads, page, tokens, norm, dtype
):
    heads = group * kv_heads
    qkv = random(tokens, heads + 2 * kv_heads, dim, dtype=dtype, device=device)
    weights = [random(dim, dtype=dtype, device=device, scale=s) if norm else None for s in (1, 2)]
    table = rope_table(90, dim, 10_000.0, device)
    positions = torch.arange(tokens, device=device) * 13
    slots = (torch.arange(tokens, device=device) * 7 + 3) % (4 * page)
    slots[0] = -1
    caches = [torch.full((4, page, kv_heads, dim), 5.0, dtype=dtype, device=device) for _ in "kv"]
    expected = [c.clone() for c in caches]
    q = rope_and_write(qkv, positions, slots, table, *caches, *weights)
    want = rope_and_write_spec(qkv, positions, slots, table, *expected, *weights)
    close(q, want, 2.0)
    for got, wanted in zip(caches, expected, strict=True):
        close(got, wanted, 2.0)


def test_the_fused_kernel_on_a_long_prefill(device, close):
    tokens, dim = 258, 64
    qkv = random(tokens, 3, dim, dtype=torch.float16, device=device)
    table = rope_table(300, dim, 10_000.0, device)
    positions = torch.arange(tokens, device=device)
    caches = [torch.zeros(17, 16, 1, dim, dtype=torch.float16, device=device) for _ in "kv"]
    expected = [c.clone() for c in caches]
    q = rope_and_write(qkv, positions, positions, table, *caches)
    close(q, rope_and_write_spec(qkv, positions, positions, table, *expected))
    for got, wanted in zip(caches, expected, strict=True):
        close(got, wanted)


def test_the_fused_kernel_wants_both_norm_weights_or_none(device):
    qkv = torch.zeros(1, 3, 64, device=device)
    cache = torch.zeros(1, 8, 1, 64, device=device)
    table = rope_table(4, 64, 10_000.0, device)
    at = torch.zeros(1, dtype=torch.int64, device=device)
    with pytest.raises(ValueError, match="both or neither"):
        rope_and_write(qkv, at, at, table, cache, cache, q_weight=torch.ones(64, device=device))


def test_the_rope_table_holds_cosine_then_sine():
    table = rope_table(3, 4, 100.0)
    angles = torch.tensor([2.0, 0.2], dtype=torch.float64)
    torch.testing.assert_close(table[2], torch.cat((angles.cos(), angles.sin())).float())
    assert math.isclose(table[0, 0].item(), 1.0)

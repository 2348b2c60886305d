"""The compiled parts of the CPU against their definition, and what a step may cost in calls."""

from __future__ import annotations

import math
import random

import pytest
import torch

pytest.importorskip("numba")

from llmlab.bench.cpu_forward import decode_batch, operator_calls
from llmlab.config import EngineConfig
from llmlab.engine import Engine
from llmlab.engine.attention import paged_attention
from llmlab.engine.batch import make_batch
from llmlab.engine.cpu_model import CpuForward
from llmlab.engine.kv_cache import KVCache
from llmlab.engine.load import build_model
from llmlab.engine.model import rms_norm
from llmlab.engine.weights import TINY, TINY_MODELS, random_source
from llmlab.kernels.cpu_code import code
from llmlab.kernels.cpu_memory import AT_ONCE, Memory
from llmlab.kernels.cpu_team import Part
from llmlab.kernels.cpu_weights import Products, pack
from llmlab.kernels.cpu_width import BLOCK, COLUMNS, MOST_ROWS


@pytest.fixture(scope="module")
def packed():
    """The tiny model with its weights in 16 bits."""
    return build_model(random_source(TINY), packed=True)


def filled(config, blocks, block_size, dtype=torch.float32):
    """A pool of random numbers, the same ones each time."""
    kv = KVCache(config, blocks, block_size, dtype=dtype)
    torch.manual_seed(0)
    kv.k.normal_(), kv.v.normal_()
    return kv


def run(part, *tensors):
    for i, tensor in enumerate(tensors, 1):
        part.addresses[i] = tensor.data_ptr()
    part.run(True)


# ---------------------------------------------------------------- parts


@pytest.mark.parametrize("depth", [1, 40, 3 * BLOCK // 2])
@pytest.mark.parametrize("columns", [COLUMNS, 7 * COLUMNS, 5 * COLUMNS + 3])
def test_a_product_is_that_of_the_rounded_weights_whatever_the_rows(depth, columns):
    torch.manual_seed(depth)
    weight, x = torch.randn(columns, depth), torch.randn(3 * MOST_ROWS + 5, depth)
    products, panels = Products(), pack(weight.split(2 * COLUMNS), Memory())
    expected = x.double() @ weight.half().double().T
    size = x.double().abs() @ weight.half().double().abs().T
    width = panels.shape[0] * COLUMNS
    whole = torch.full((len(x), width), math.nan)
    products.run(x, panels, whole)
    # A few roundings of float32; a weight that is not the rounded one is a thousand times as far.
    assert (
        (whole[:, :columns] - expected).abs() <= 4 * torch.finfo(torch.float32).eps * size
    ).all()
    for rows in range(1, len(x)):
        y = torch.full((rows, width), math.nan)
        products.run(x[:rows], panels, y)
        assert torch.equal(y, whole[:rows]), f"a row depends on how many there are: {rows}"


def test_the_residual_is_added_and_normed():
    residual, delta, weight = torch.randn(9, 40), torch.randn(9, 40), torch.randn(40)
    out, expected = torch.empty(9, 40), residual + delta
    part = Part(code("cpu_parts", "add_norm"), sizes=3, addresses=6)
    part.sizes[:] = [9, 40, 1]
    run(part, torch.tensor([1e-5]), residual, delta, weight, out)
    torch.testing.assert_close(residual, expected)
    torch.testing.assert_close(out, rms_norm(expected, weight, 1e-5))


def test_silu_mul_holds_for_any_size_of_number_and_lets_nan_through():
    gates = [0.0, -0.0, 1e-30, 5, -5, 80, -80, 200, -200, 3e38, -3e38, math.nan, math.inf]
    both = torch.stack((torch.tensor(gates), torch.ones(len(gates))))[None]  # [1, 2, I]
    out = torch.empty(1, len(gates))
    part = Part(code("cpu_parts", "silu_mul"), sizes=2, addresses=3)
    part.sizes[:] = [1, len(gates)]
    run(part, both, out)
    expected = torch.nn.functional.silu(both[:, 0].double()).float()
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-30, equal_nan=True)


def test_pieces_of_memory_do_not_overlap_and_outlive_what_handed_them_out():
    memory, pieces = Memory(), []
    for i, shape in enumerate([(3, 5), (7,), (AT_ONCE // 4, 3), (1, 1)]):
        pieces.append(memory.take(*shape, dtype=torch.float16).fill_(i))
        assert pieces[-1].shape == shape
        assert pieces[-1].data_ptr() % 64 == 0
    del memory
    assert all((piece == i).all() for i, piece in enumerate(pieces))


# ---------------------------------------------------------------- the whole pass


def mixed_batch(block_size, blocks):
    """A decode, a whole prompt, a later chunk and another decode, in pages that lie anywhere."""
    rng = random.Random(block_size)
    lengths, queries = [20, 11, 30, 1], [1, 11, 7, 1]
    free = rng.sample(range(blocks), blocks)
    tables = [[free.pop() for _ in range(-(-c // block_size))] for c in lengths]
    positions = [p for c, n in zip(lengths, queries, strict=True) for p in range(c - n, c)]
    rows = [r for r, n in enumerate(queries) for _ in range(n)]
    slots = [
        tables[r][p // block_size] * block_size + p % block_size
        for r, p in zip(rows, positions, strict=True)
    ]
    starts = [0]
    for n in queries:
        starts.append(starts[-1] + n)
    ids = [rng.randrange(250) for _ in rows]
    batch = make_batch(ids, positions, slots, starts, lengths, tables, [s - 1 for s in starts[1:]])
    written = {
        tables[r][p // block_size] * block_size + p % block_size
        for r, c in enumerate(lengths)
        for p in range(c)
    }
    return batch, written


@pytest.mark.parametrize("name", sorted(TINY_MODELS))
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-4), (torch.float16, 4e-3)])
def test_the_compiled_pass_is_the_plain_one_and_reads_nothing_unwritten(
    name, block_size, dtype, near
):
    model = build_model(random_source(TINY_MODELS[name]))
    blocks = 80 // min(block_size, 4)
    batch, written = mixed_batch(block_size, blocks)
    ours, theirs = (filled(model.config, blocks, block_size, dtype) for _ in range(2))
    for kv in (ours, theirs):
        for pool in (kv.k, kv.v):
            flat = pool.flatten(1, 2)  # [L, N * B, Hkv, D]
            unwritten = [s for s in range(flat.shape[1]) if s not in written]
            flat[:, unwritten] = math.nan
    with torch.inference_mode():
        got = CpuForward(model, ours, 64)(batch)
        expected = model.forward(batch, theirs, paged_attention)
    torch.testing.assert_close(got, expected, rtol=near, atol=near)
    torch.testing.assert_close(ours.k, theirs.k, rtol=near, atol=near, equal_nan=True)
    assert torch.isfinite(got).all()


@pytest.mark.parametrize("name", sorted(TINY_MODELS))
def test_a_cache_of_16_bits_holds_the_numbers_nearest_to_the_exact_ones(name):
    model = build_model(random_source(TINY_MODELS[name]))
    batch, _ = mixed_batch(4, 40)
    exact, half = (filled(model.config, 40, 4, d) for d in (torch.float32, torch.float16))
    with torch.inference_mode():
        for kv in (exact, half):
            CpuForward(model, kv, 64)(batch)
    # Later layers see what the first one's attention made of it.
    for pool, rounded in zip(exact.layer(0), half.layer(0), strict=True):
        assert torch.equal(pool.half(), rounded)


def test_keys_and_values_are_in_16_bits_beside_such_weights_and_exact_beside_exact_ones(packed):
    sizes = {
        model.packed: Engine(model, EngineConfig(num_blocks=4)).runner.kv.bytes_per_token
        for model in (packed, build_model(random_source(TINY)))
    }
    assert sizes[True] * 2 == sizes[False]


def test_a_decode_gives_the_same_bits_alone_and_among_others(packed):
    def logits(rows):
        kv = filled(packed.config, 64, 16)
        with torch.inference_mode():
            return CpuForward(packed, kv, 32)(decode_batch(rows, 32))

    alone = logits(1)[0]
    for rows in (2, 5, 13, 32):
        assert torch.equal(logits(rows)[0], alone), rows


def test_buffers_grow_and_serve_every_later_step(packed):
    kv = filled(packed.config, 256, 16)
    forward = CpuForward(packed, kv, 32)
    with torch.inference_mode():
        small = forward(decode_batch(3, 32)).clone()
        forward(decode_batch(100, 32))
        assert forward.capacity >= 100
        where = forward.x.data_ptr()
        assert torch.equal(forward(decode_batch(3, 32)), small)
    assert forward.x.data_ptr() == where, "a smaller step made new buffers"


# ---------------------------------------------------------------- what a step may cost


def cost_of_step(model, rows, monkeypatch):
    """Compiled parts started, and torch operators called, in one decode step."""
    forward = CpuForward(model, filled(model.config, 2 * rows, 16), 32)
    batch, started, run_part = decode_batch(rows, 32), [], Part.run
    with monkeypatch.context() as patch, torch.inference_mode():
        patch.setattr(Part, "run", lambda part, team: (started.append(part), run_part(part, team)))
        forward(batch)
    with torch.inference_mode():
        return len(started), operator_calls(model, lambda: forward(batch))


def test_a_decode_step_calls_no_more_at_a_larger_batch_and_gathers_no_context(packed, monkeypatch):
    """Counts, not times: compiled parts, torch operators, allocations."""
    parts, calls = cost_of_step(packed, 1, monkeypatch)
    more_parts, more_calls = cost_of_step(packed, 32, monkeypatch)
    # Five parts and four products a layer, the last norm and the head.
    assert parts == more_parts == 9 * packed.config.num_hidden_layers + 2
    calls, more_calls = (
        {name: n for name, n in found.items() if name.startswith("aten::")}
        for found in (calls, more_calls)
    )
    assert sum(more_calls.values()) < 45, "a plain pass has as many in a layer"
    assert sum(more_calls.values()) < sum(calls.values()) + 10
    assert more_calls.get("aten::empty", 0) <= 4, "a step allocates"
    assert more_calls.get("aten::index_select", 0) <= 1, "only the embedding is looked up"
    assert not {"aten::gather", "aten::scaled_dot_product_attention"} & set(more_calls)

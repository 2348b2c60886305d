"""Mistakes that real kernels made, each a case here. The report that inspired it is named."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import textwrap

import pytest
import torch
import triton
import triton.language as tl

from llmlab.kernels.kv_write import kv_write
from llmlab.kernels.launch import dot
from llmlab.kernels.norm import rms_norm, rms_norm_spec
from llmlab.kernels.paged_attention import paged_attention, paged_attention_spec
from llmlab.kernels.paged_decode import merge_launch
from llmlab.kernels.rope import rope, rope_spec, rope_table
from llmlab.kernels.tuning import Tiles

SMALL = Tiles(32, 32, 4, 1)


def run_apart(body: str) -> None:
    """Run code in a process of its own: a wrong offset does not raise, it crashes."""
    code = "import torch\n" + textwrap.dedent(body)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, timeout=120
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr[-2000:]}"


@pytest.mark.slow
@pytest.mark.parametrize("num_decodes", [0, 1])
def test_pages_beyond_two_to_the_31_elements_are_found(num_decodes):
    """vllm#47671: page id * page stride overflowed int32. Untouched memory costs nothing."""
    run_apart(f"""
        from llmlab.kernels.paged_attention import paged_attention, paged_attention_spec
        from llmlab.kernels.tuning import Tiles
        device = "cuda" if torch.cuda.is_available() else "cpu"
        page, heads, dim, n = 16, 2, 64, 40
        pages = 2**31 // (page * heads * dim) + 9
        shape, kind = (pages, page, heads, dim), dict(dtype=torch.float16, device=device)
        k, v = torch.empty(shape, **kind), torch.empty(shape, **kind)
        assert k.numel() > 2**31
        table = torch.tensor([[pages - 1, 5, pages - 3]], dtype=torch.int32, device=device)
        torch.manual_seed(0)
        for at, block in enumerate(table[0].tolist()):
            live = min(page, n - at * page)
            k[block] = v[block] = float("nan")
            k[block, :live] = torch.randn(live, heads, dim)
            v[block, :live] = torch.randn(live, heads, dim)
        queries = 1 if {num_decodes} else 5
        q = torch.randn(queries, 4, dim).half().to(device)
        start = torch.tensor([0, queries], dtype=torch.int32, device=device)
        context = torch.tensor([n], dtype=torch.int32, device=device)
        out = paged_attention(q, k, v, start, context, table, num_decodes={num_decodes}, splits=2,
                              tiles=Tiles(32, 32, 4, 1))
        error = (out.double() - paged_attention_spec(q, k, v, start, context, table)).abs().max()
        assert error < 3e-3, error
    """)


@pytest.mark.slow
def test_rows_and_slots_beyond_two_to_the_31_elements_are_found():
    """The same overflow in every other offset: huge strides over memory that is never touched."""
    run_apart("""
        from llmlab.kernels.activation import silu_mul_launch, silu_mul_spec
        from llmlab.kernels.fused import rope_and_write, rope_and_write_spec
        from llmlab.kernels.kv_write import kv_write
        from llmlab.kernels.norm import rms_norm_launch, rms_norm_spec
        from llmlab.kernels.paged_attention import paged_attention
        from llmlab.kernels.rope import rope, rope_spec, rope_table
        device = "cuda" if torch.cuda.is_available() else "cpu"
        far, rows, dim = 2**30 + 64, 3, 64
        memory = torch.empty(far * rows, dtype=torch.float16, device=device)
        inner_strides = lambda inner: torch.empty(inner).stride()
        spread = lambda *inner: memory.as_strided((rows, *inner), (far, *inner_strides(inner)))
        fill = lambda *inner: torch.randn(rows, *inner).half().to(device)
        near = lambda a, b: (a.double() - b.double()).abs().max() < 4e-3
        at = torch.arange(rows, device=device)

        x, weight, out = fill(dim), torch.ones(dim, device=device).half(), spread(dim)
        rms_norm_launch(x, weight, out, 1e-5).run()
        assert near(out, rms_norm_spec(x, weight, 1e-5)[0])
        spread(dim).copy_(x)
        rms_norm_launch(spread(dim), weight, x, 1e-5).run()
        assert near(x, rms_norm_spec(spread(dim), weight, 1e-5)[0])

        gate_up, out = fill(2 * dim), spread(dim)
        silu_mul_launch(gate_up, out).run()
        assert near(out, silu_mul_spec(gate_up))

        table, heads, x = rope_table(8, dim, 1e4, device), spread(2, dim), fill(2, dim)
        heads.copy_(x)
        rope(heads, at, table)
        assert near(heads, rope_spec(x, at, table))

        k, cache = fill(1, dim), spread(2, 1, dim)
        kv_write(k, k, cache, cache, at * 2 + 1)
        assert torch.equal(cache[:, 1], k)

        qkv, small = fill(4, dim), torch.zeros(rows, 2, 1, dim, device=device).half()
        q = rope_and_write(qkv, at, at * 2, table, cache, small)
        want_k, want_v = torch.zeros_like(small), torch.zeros_like(small)
        want = rope_and_write_spec(qkv, at, at * 2, table, want_k, want_v)
        assert near(q, want) and near(cache[:, 0], want_k[:, 0]) and near(small, want_v)

        # Heads outermost: the third head's offset does not fit in 32 bits.
        by_head = memory.as_strided((2, 2, rows, dim), (2 * dim, dim, far, 1))
        at = torch.tensor([1], device=device)
        k = torch.randn(1, rows, dim).half().to(device)
        rope_and_write(torch.cat((k, k, k), 1), at * 0, at, table, by_head, by_head)
        assert torch.equal(by_head[0, 1], k[0])
        kv_write(k, k, by_head, by_head, at * 0)
        assert torch.equal(by_head[0, 0], k[0])
        start, context = at.int() - torch.tensor([1, 0]).int().to(device), at.int()
        for decodes in (0, 1):
            page = torch.zeros(1, 1, dtype=torch.int32, device=device)
            out = paged_attention(k, by_head, by_head, start, context, page, num_decodes=decodes)
            assert torch.equal(out, k)
    """)


def test_a_tile_outside_every_window_gives_no_nan(paged, close):
    """vllm#4405: exp(-inf - -inf) where a whole tile lies outside a row's window."""
    case = paged([40], [100])
    result = paged_attention(*case.args, window=9, tiles=SMALL)
    close(result, paged_attention_spec(*case.args, 9))
    assert (result.abs().sum(-1) > 0).all()


@pytest.mark.parametrize("dim", [80, 96, 112])
def test_a_head_dim_that_is_no_power_of_two(paged, close, dim):
    """vllm#4127: padded lanes are neither read past the row nor stored."""
    case = paged([1, 1, 1, 19], [40, 1, 15, 35], dim=dim)
    wide = torch.full((22, 4, 128), 7.0, dtype=case.q.dtype, device=case.q.device)
    paged_attention(*case.args, num_decodes=3, splits=1, tiles=SMALL, out=wide[..., :dim])
    close(wide[..., :dim], paged_attention_spec(*case.args))
    assert (wide[..., dim:] == 7.0).all()


@pytest.mark.parametrize(("context", "oldest"), [(20, 12), (8, 0), (7, 0)])
@pytest.mark.parametrize("num_decodes", [0, 1])
def test_a_decode_window_of_8_sees_8_keys(paged, context, oldest, num_decodes):
    """sglang#32087: the window lost its oldest key. V row j is one-hot(j), all keys equal."""
    case = paged([1], [context], heads=1, kv_heads=1)
    for j in range(context):
        block = case.block_table[0, j // 16].item()
        case.k_cache[block, j % 16] = 0.0
        case.v_cache[block, j % 16] = torch.eye(64)[j]
    out = paged_attention(*case.args, num_decodes=num_decodes, splits=1, window=8, tiles=SMALL)
    expected = torch.zeros(64)
    expected[oldest:context] = 1 / (context - oldest)
    torch.testing.assert_close(out[0, 0].float().cpu(), expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize("num_decodes", [0, 1])
def test_the_last_tile_does_not_read_past_the_block_table(paged, close, num_decodes):
    """vllm#56862: the table has exactly ceil(n / page) columns; what follows is no page."""
    case = paged([1], [17])
    wide = torch.full((1, 64), 2**30, dtype=torch.int32, device=case.q.device)
    wide[:, :2] = case.block_table
    args = (*case.args[:5], wide[:, :2])
    tiles = Tiles(32, 64, 4, 1)
    result = paged_attention(*args, num_decodes=num_decodes, splits=1, tiles=tiles)
    close(result, paged_attention_spec(*case.args))


@pytest.mark.slow
@pytest.mark.parametrize("num_decodes", [0, 1])
def test_nothing_is_read_behind_the_block_table(num_decodes):
    """The same, with unreadable memory right behind the table's last entry."""
    run_apart(f"""
        import ctypes, mmap
        from llmlab.kernels.paged_attention import paged_attention, paged_attention_spec
        from llmlab.kernels.tuning import Tiles
        if torch.cuda.is_available():
            raise SystemExit  # the guard is host memory
        memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        libc = ctypes.CDLL(None, use_errno=True)
        behind = ctypes.c_void_p(start + mmap.PAGESIZE)
        assert libc.mprotect(behind, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
        entries = torch.frombuffer(memory, dtype=torch.int32, count=mmap.PAGESIZE // 4)
        table = entries[-2:].view(1, 2)
        table.copy_(torch.tensor([[1, 0]]))
        k, v = torch.randn(2, 2, 16, 1, 64)
        q = torch.randn(1, 1, 64)
        start, context = torch.tensor([0, 1]).int(), torch.tensor([17]).int()
        out = paged_attention(q, k, v, start, context, table, num_decodes={num_decodes},
                              splits=1, tiles=Tiles(32, 64, 4, 1))
        error = (out - paged_attention_spec(q, k, v, start, context, table)).abs().max()
        assert error < 1e-5, error
    """)


def test_rms_norm_of_a_transposed_tensor_is_refused(device, close):
    """LightLLM#1467: the last stride was ignored, silently."""
    x = torch.randn(64, 40, device=device).t()
    weight = torch.ones(64, device=device)
    with pytest.raises(ValueError, match=r"x\.stride\(-1\) = 40: must be 1"):
        rms_norm(x, weight, 1e-5)
    close(rms_norm(x.contiguous(), weight, 1e-5), rms_norm_spec(x, weight, 1e-5)[0])


def test_merging_only_empty_splits_gives_zero(device):
    """flashinfer#4051: 0 / 0. And one live split among empty ones is the answer exactly."""
    partial = torch.full((2, 1, 4, 64), math.nan, device=device)
    lse = torch.full((2, 1, 4), -math.inf, device=device)
    partial[1, 0, 2] = live = torch.randn(64, device=device)
    lse[1, 0, 2] = 3.5
    out, out_lse = torch.full((2, 1, 64), 9.0, device=device), torch.zeros(2, 1, device=device)
    merge_launch(partial, lse, out, out_lse).run()
    assert (out[0] == 0).all()
    assert out_lse[0, 0] == -math.inf
    assert torch.equal(out[1, 0], live)
    assert out_lse[1, 0] == 3.5


@pytest.mark.parametrize("padding", [math.nan, 1.0])
def test_rope_takes_the_sine_from_the_real_dim(device, close, padding):
    """vllm-ascend#12723: the sine's offset came from the padded dim. Here 96 pads to 128."""
    rows = torch.full((9, 160), padding, device=device)
    rows[:, :96] = rope_table(9, 96, 10_000.0, device)
    table = rows[:, :96]
    wide = torch.randn(5, 2, 128, device=device)
    x, before = wide[..., :96], wide.clone()
    positions = torch.tensor([0, 2, 4, 6, 8], device=device)
    expected = rope_spec(x, positions, table)
    rope(x, positions, table)
    close(x, expected)
    pairs = [(t[..., :48] ** 2 + t[..., 48:96] ** 2).sqrt() for t in (wide, before)]
    torch.testing.assert_close(*pairs, atol=1e-3, rtol=0)
    assert torch.equal(wide[..., 96:], before[..., 96:])


def test_rotating_part_of_a_head_is_refused(device):
    with pytest.raises(ValueError, match="must be the head dim 128"):
        rope(
            torch.zeros(1, 1, 128, device=device),
            torch.zeros(1, device=device),
            rope_table(2, 96, 1e4, device),
        )


@pytest.mark.parametrize("slots", [[3, 17, 4, 30, 9, -1, -1, -1], [3, 17, 4, 30, 9]])
def test_padded_rows_of_a_captured_graph_write_nothing(device, slots):
    """vllm#13922: fewer slots than rows, or padding of -1; 5 slots change, no other."""
    k, v = (torch.randn(8, 2, 64, device=device) for _ in "kv")
    caches = [torch.full((2, 16, 2, 64), 7.0, device=device) for _ in "kv"]
    kv_write(k, v, *caches, torch.tensor(slots, device=device))
    for cache, new in zip(caches, (k, v), strict=True):
        flat = cache.flatten(0, 1)
        changed = (flat != 7.0).any(-1).any(-1).nonzero().flatten().tolist()
        assert changed == [3, 4, 9, 17, 30]
        assert torch.equal(flat[slots[:5]], new[:5])


def test_a_prefill_shorter_than_a_page(paged, close):
    """flashinfer#3106: fewer keys than a page or a tile."""
    case = paged([8], [9], heads=14)
    close(paged_attention(*case.args), paged_attention_spec(*case.args))


@pytest.mark.slow
def test_every_prefill_up_to_17_keys(paged, close):
    """flashinfer#3106, exhaustively: 153 requests in one launch."""
    pairs = [(n, context) for context in range(1, 18) for n in range(1, context + 1)]
    assert len(pairs) == 153
    case = paged([n for n, _ in pairs], [c for _, c in pairs], heads=7, kv_heads=1)
    result = paged_attention(*case.args, tiles=Tiles(128, 32, 4, 1))
    close(result, paged_attention_spec(*case.args))


@triton.jit
def _product(a, b, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :], tl.arange(0, K)
    left = tl.load(a + m * K + k[None, :])
    right = tl.load(b + k[:, None] * N + n)
    tl.store(out + m * N + n, dot(left, right, tl.zeros([M, N], dtype=tl.float32)))


def test_our_product_of_bfloat16_is_right_in_the_interpreter(device):
    """triton#11584: the interpreter multiplies the bit patterns, an error of 10^10."""
    a, b = torch.randn(16, 32, device=device), torch.randn(32, 16, device=device)
    a, b, out = a.bfloat16(), b.bfloat16(), torch.empty(16, 16, device=device)
    _product[(1,)](a, b, out, M=16, N=16, K=32)
    assert (out.double() - a.double() @ b.double()).abs().max() < 1e-2

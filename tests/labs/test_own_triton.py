"""The watched interpreter: it counts, it stops the first access outside, it leaves no trace."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from llmlab.labs.own_aot import compile_decode, show_compiled, source_of
from llmlab.labs.own_triton import OutOfBounds, tl, triton, watching, where
from tests.labs.own_kernels_source import DECODE, made


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    tl.store(out + i, tl.load(x + i, mask=inside) + tl.load(y + i, mask=inside), mask=inside)


@triton.jit
def unmasked_kernel(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < 2), mask=i < BLOCK)


@triton.jit
def shifted_kernel(x, out, by, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i + by, tl.load(x + i))


FACTOR = tl.constexpr(2)


@triton.jit
def twice(x):
    return x * FACTOR


def test_every_load_and_store_is_written_down():
    x, y, out = torch.arange(10.0), torch.ones(10), torch.zeros(10)
    with watching() as seen:
        add_kernel[(3,)](x, y, out, 10, BLOCK=4)
    assert out.tolist() == [i + 1 for i in range(10)]
    assert seen.programs == 3
    assert seen.loaded("x") == seen.distinct("x") == seen.stored("out") == 40
    assert seen.rows()[-1] == ["2, 0, 0", "store", "out[8 .. 9]", "2 of 4"]
    assert "3 programs" in seen._repr_mimebundle_()["text/plain"]


def test_a_store_outside_is_an_error_and_does_not_happen():
    whole = torch.zeros(6)
    for by, said in (
        (1, "stores to out[4], but its last element is out[3]"),
        (-1, "stores to out[-1], before"),
    ):
        with pytest.raises(Exception, match="OutOfBounds") as error:
            shifted_kernel[(1,)](torch.ones(4), whole[1:5], by, BLOCK=4)
        assert isinstance(error.value.__cause__, OutOfBounds)
        assert said in str(error.value)
        assert whole.tolist() == [0] * 6


def test_a_load_outside_names_program_and_place():
    x = torch.ones(10)
    with pytest.raises(Exception, match=r"program \(2, 0, 0\) loads x\[10\]"):
        add_kernel[(3,)](x, torch.ones(20), torch.ones(20), 12, BLOCK=4)


def test_a_masked_lane_without_other_is_undefined_here_too():
    out = torch.zeros(4)
    unmasked_kernel[(1,)](torch.ones(2), out, BLOCK=4)
    assert out[:2].tolist() == [1, 1]
    assert out[2:].isnan().all()


def test_watching_ends_and_triton_is_as_before():
    from triton.runtime.jit import JITFunction

    before, load = JITFunction.run, tl.load
    x, out = torch.ones(2), torch.zeros(4)
    with watching() as seen:
        unmasked_kernel[(1,)](x, out, BLOCK=4)
    unmasked_kernel[(1,)](x, out, BLOCK=4)
    assert seen.programs == 1
    assert JITFunction.run is before
    assert tl.load is load


def test_a_kernel_s_source_brings_its_helpers_and_constants():
    kernel = made(
        "@triton.jit\ndef decode_kernel(x):\n    tl.store(x, twice(tl.load(x)))\n", twice=twice
    )
    source = source_of(kernel)
    assert "FACTOR = tl.constexpr(2)" in source
    assert source.index("FACTOR =") < source.index("def twice") < source.index("def decode_kernel")
    compile(source, "kernel", "exec")


def test_where_says_interpreter_or_card():
    assert "interpreter" in where() or "compiled for" in where()


@pytest.mark.slow
def test_a_kernel_of_a_notebook_is_compiled_for_chips_that_are_not_here():
    rows = compile_decode(made(DECODE), tiles=(16, 64)) + compile_decode(None)
    assert [(r.kernel, r.target) for r in rows[::2]] == [("yours", "sm_80")] * 2 + [
        ("library's", "sm_80")
    ]
    assert all(0 < r.registers <= 255 and r.vector_loads > 0 for r in rows)
    assert {r.matrix_instruction for r in rows[:4]} == {"none"}
    assert {r.matrix_instruction for r in rows[4:]} == {"mma"}
    assert "Compiled, not run" in repr(show_compiled(rows))
    with pytest.raises(RuntimeError, match="zeross"):
        compile_decode(made(DECODE, ("tl.zeros", "tl.zeross")), tiles=(16,), archs=(80,))

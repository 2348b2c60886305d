"""What the compiler makes of every variant the engine launches, for chips that are not here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap

import pytest

from llmlab.kernels.aot import ARCHS, SHARED_LIMIT, VECTOR_LOAD, Row, compile_launch, table

MATRIX = {"sm_80": "mma", "sm_90": "wgmma", "sm_100": "tcgen05"}
STREAMS = ("prefill", "decode", "merge", "rms_norm", "silu_mul", "kv_write")


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    return table()


@pytest.mark.slow
def test_every_variant_compiles_for_every_chip(rows):
    variants = {
        arch: {(r["kernel"], r["variant"]) for r in rows if r["target"] == arch} for arch in MATRIX
    }
    names = {r["kernel"] for r in rows}
    assert names == {*STREAMS, "rope", "rope_and_write"}
    assert all(len(found) >= 40 for found in variants.values())
    for row in rows:
        assert tuple(row) == Row.__match_args__


@pytest.mark.slow
def test_no_variant_that_the_heuristic_picks_spills(rows):
    assert [r for r in rows if r["spills"]] == []
    assert all(0 < r["registers"] <= 255 for r in rows)


@pytest.mark.slow
def test_shared_memory_fits_the_chip(rows):
    for r in rows:
        assert r["shared_bytes"] <= SHARED_LIMIT[int(r["target"][3:])], r


@pytest.mark.slow
def test_attention_runs_on_the_matrix_units(rows):
    for r in rows:
        if r["kernel"] == "prefill":
            assert r["matrix_instruction"] == MATRIX[r["target"]], r
        elif r["kernel"] == "decode":
            assert r["matrix_instruction"] != "none", r


@pytest.mark.slow
def test_kernels_that_stream_load_16_bytes_at_a_time(rows):
    for r in rows:
        prefill_rope = r["kernel"] == "rope_and_write" and r["variant"].endswith("prefill")
        if r["kernel"] in STREAMS or prefill_rope:
            assert r["vector_loads"] > 0, r


@pytest.mark.slow
def test_the_command_prints_one_json_row_a_variant():
    command = [sys.executable, "-m", "llmlab.cli.main", "kernels", "--json", "--arch", "90"]
    done = subprocess.run(
        [*command, "--kernel", "merge"], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert {r["kernel"] for r in found} == {"merge"}
    assert {r["target"] for r in found} == {"sm_90"}
    assert set(found[0]) == set(Row.__match_args__)


@pytest.mark.parametrize(
    "line",
    [
        "ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];",
        "ld.global.L1::evict_last.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];",
        "ld.global.v2.b64 {%rd1, %rd2}, [%rd3];",
        "cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2;",
    ],
)
def test_a_16_byte_load_is_recognised(line):
    assert VECTOR_LOAD.search(line)


@pytest.mark.parametrize(
    "line",
    [
        "ld.global.b32 %r1, [ %rd1 + 0 ];",
        "ld.global.v2.b32 {%r1, %r2}, [%rd1];",
        "cp.async.ca.shared.global [ %r16 + 0 ], [ %rd1 + 0 ], 0x4, %r2;",
    ],
)
def test_a_narrow_load_is_not(line):
    assert not VECTOR_LOAD.search(line)


def test_compiling_in_the_interpreter_says_what_to_do():
    class Interpreted:
        kernel = object()

    with pytest.raises(RuntimeError, match="TRITON_INTERPRET is set"):
        compile_launch(Interpreted(), 90)


def test_an_unknown_kernel_gives_no_rows_and_a_broken_compiler_one_sentence(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match=re.escape("compiling the kernels failed")):
        table(ARCHS[:1])


def run_compiled(body: str) -> str:
    """Run code in a process without the interpreter; returns what it prints."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", textwrap.dedent(body)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_what_is_compiled_ahead_is_what_the_jit_would_compile():
    """Triton's own JIT, on a driver that has a target and no card, sees the same variants.

    What it would hand to the compiler is caught there: the compiler's work is in `rows`.
    """
    out = run_compiled("""
        from types import SimpleNamespace
        import torch, triton
        from triton.backends.compiler import GPUTarget
        from llmlab.kernels.aot import signature
        from llmlab.kernels.variants import variants

        class NoCard:
            utils = None
            get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
            get_current_device = staticmethod(lambda: 0)
            get_current_stream = staticmethod(lambda device: 0)
            get_active_torch_device = staticmethod(lambda: torch.device("cpu"))

        triton.runtime.driver.set_active(NoCard())
        triton.compiler.compile = lambda src, **more: SimpleNamespace(src=src, **more)
        for name, variant, launch in variants(90):
            source = launch.kernel.run(
                **launch.args, **launch.constants, num_warps=launch.num_warps,
                num_stages=launch.num_stages, enable_fp_fusion=True, grid=launch.grid, warmup=True,
            ).src
            types, constants, aligned = signature(launch)
            assert dict(source.signature) == types, (name, variant)
            assert source.constants == constants, (name, variant)
            assert {k: v for k, v in source.attrs.items() if v} == aligned, (name, variant)
            print(name)
    """)
    assert len(out.split()) >= 40


@pytest.mark.slow
def test_changing_batches_do_not_compile_again_and_again():
    """Launches of many steps, recorded and not run: few variants, whatever the lengths are."""
    out = run_compiled("""
        import random, torch
        from llmlab.config import EngineConfig
        from llmlab.engine import Engine, load_model
        from llmlab.engine.cuda_runner import CudaRunner
        from llmlab.kernels.aot import signature
        from llmlab.kernels.launch import Launch
        from llmlab.sched.request import SamplingParams

        seen = {}
        def record(launch):
            key = str((signature(launch), launch.num_warps, launch.num_stages))
            seen.setdefault(launch.kernel.__name__, set()).add(key)
        Launch.run = record

        class Runner(CudaRunner):
            def forward(self, batch):
                return torch.zeros_like(super().forward(batch))

        rng = random.Random(0)
        config = EngineConfig(max_num_batched_tokens=300, max_num_seqs=7, num_blocks=200,
                              max_model_len=600)
        model = load_model("tiny-qwen3", dtype=torch.bfloat16)
        engine = Engine(model, config, attention="triton", runner=Runner)
        for _ in range(12):
            prompt = [1] * rng.randint(1, 400)
            engine.add(prompt, SamplingParams(max_tokens=rng.randint(1, 30), ignore_eos=True))
        while engine.has_work:
            engine.step()
        for name, keys in sorted(seen.items()):
            print(name, len(keys))
    """)
    found = {name: int(count) for name, count in (line.split() for line in out.splitlines())}
    # norm with and without residual, RoPE for few and many tokens, decode whole and split
    assert found.pop("prefill_kernel") == 1
    assert found.pop("silu_mul_kernel") == 1
    assert found.pop("rms_norm_kernel") == 2
    assert found.pop("rope_and_write_kernel") == 2
    # The interpreter's one SM asks for 3 programs: at batch 1 two splits, else none.
    assert found.pop("decode_kernel") <= 2
    assert found.pop("merge_kernel", 0) <= 1
    assert found == {}

"""What the compiler makes of every variant the engine launches, for chips that are not here."""

from __future__ import annotations

import json
import re
import subprocess
import sys

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

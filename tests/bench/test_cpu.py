"""The CPU benchmark: its arithmetic, its parts against each other, and what a step may cost."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from llmlab.bench import cpu, cpu_report
from llmlab.bench.cpu_forward import (
    contiguous_attention,
    decode_batch,
    forward_ms,
    operator_calls,
)
from llmlab.bench.cpu_measure import loaded_and_served
from llmlab.bench.cpu_peers import ThisEngine, prompt
from llmlab.engine import load_model
from llmlab.engine.attention import paged_attention
from llmlab.engine.kv_cache import KVCache

RESULT = {
    "cpu": "a CPU",
    "threads": 2,
    "torch": "2",
    "context": 128,
    "floors": {
        "read_gb_s": 30.0,
        "matrix_gflops": {"fp32": 100.0},
        "decode_step": {
            "1": {"fp32_ms": 10.0, "fp16_ms": 5.0},
            "4": {"fp32_ms": 10.0, "fp16_ms": 8.0},
        },
        "prefill_tokens_per_s": {"512": 1000.0},
    },
    "decode_ms": {"llmlab": {"1": 12.0, "4": 16.0}, "transformers": {"1": 24.0}},
    "forward_ms": {
        "1": {"paged": 11.0, "contiguous": 10.0, "without attention": 9.0},
        "4": {"paged": 15.0, "contiguous": 15.0, "without attention": 12.0},
    },
    "prefill_tokens_per_s": {"llmlab": {"512": 800.0}, "transformers": {"512": 400.0}},
    "serving": {"requests": 3, "requests_per_s": {"llmlab": 4.0, "transformers cb": 1.0}},
    "load_s": 1.0,
    "peak_memory_mb": 600.0,
    "absent": {"llama.cpp": "not installed"},
}


def test_ratios_are_this_engines_time_over_the_others():
    got = cpu_report.ratios(RESULT)
    assert got["decode_over_fp32_floor"] == {"1": 1.2, "4": 1.6}
    assert got["decode_over_fp16_floor"] == {"1": 2.4, "4": 2.0}
    assert got["decode_over_transformers"] == {"1": 0.5}
    assert got["prefill_over_floor"] == {"512": 1.25}
    assert got["paged_over_contiguous"] == {"1": 1.1, "4": 1.0}
    assert got["serving_time_over_transformers cb"] == 0.25


def test_targets_show_the_worst_batch_of_the_run_and_only_what_was_measured():
    rows = cpu_report.targets(RESULT | {"ratios": cpu_report.ratios(RESULT)})
    by_name = {row["target"].split(" at ")[0]: row for row in rows}
    assert by_name["decode_over_fp32_floor"] == {
        "target": "decode_over_fp32_floor at 1, 2, 4",
        "limit": 1.6,
        "got": 1.6,
        "met": True,
    }
    assert by_name["prefill_over_floor"]["got"] == 1.25
    assert "decode_over_llama.cpp F32" not in by_name
    assert by_name["peak_memory_mb"]["met"]


def test_a_figure_names_every_line_and_is_one_picture():
    import xml.etree.ElementTree as ElementTree

    from llmlab.bench.cpu_plot import draw

    picture = ElementTree.fromstring(draw(RESULT))
    words = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    for name in ("llmlab", "transformers", "floor, fp16 weights", "llmlab: attention alone"):
        assert name in words


def test_a_later_part_keeps_the_earlier_ones_of_the_same_machine(tmp_path):
    out, here = tmp_path / "cpu.json", {"cpu": "one", "threads": 2}
    assert cpu.earlier(out, here) == {}
    out.write_text(json.dumps(here | {"load_s": 1.0}))
    assert cpu.earlier(out, here)["load_s"] == 1.0
    assert cpu.earlier(out, here | {"cpu": "another"}) == {}
    assert cpu.earlier(out, here | {"threads": 4}) == {}
    out.write_text("{")
    with pytest.raises(ValueError, match="no JSON"):
        cpu.earlier(out, here)


def test_the_table_names_absent_peers_and_fits_80_columns():
    text = cpu_report.table(RESULT | {"ratios": cpu_report.ratios(RESULT)})
    assert "llama.cpp: not installed" in text
    assert "12.0" in text
    assert all(len(line) <= 80 for line in text.splitlines())


@pytest.mark.parametrize(
    "argv",
    [
        ["--batches", "0"],
        ["--batches", "a"],
        ["--rounds", "0"],
        ["--prefill", "4001"],
        ["--peers", "vllm"],
        ["--parts", "x"],
    ],
)
def test_a_bad_option_is_refused(argv, capsys):
    with pytest.raises(SystemExit) as stop:
        cpu.main(argv)
    assert stop.value.code == 2
    assert "must be" in capsys.readouterr().err


def test_contiguous_and_paged_attention_agree():
    model = load_model("tiny")
    batch = decode_batch(3, 32)
    kv = KVCache(model.config, 6, 16)
    kv.k.normal_(), kv.v.normal_()
    q = torch.randn(3, 4, 16)
    torch.testing.assert_close(
        contiguous_attention(q, *kv.layer(0), batch), paged_attention(q, *kv.layer(0), batch)
    )
    assert set(forward_ms(model, 2, 32, repeats=1)) == {"paged", "contiguous", "without attention"}
    with pytest.raises(ValueError, match="context = 33"):
        forward_ms(model, 2, 33)


def test_the_engine_times_steps_in_which_all_decode():
    ours = ThisEngine(load_model("tiny", seed=1))
    # The benchmark's prompts are ids of a large vocabulary; the tiny one has bytes.
    import llmlab.bench.cpu_peers as peers

    original = peers.prompt
    peers.prompt = lambda tokens, salt=0: [i % 256 for i in original(tokens, salt)]
    try:
        assert len(ours.decode_steps(3, 32, 4)) == 4
        (engine,) = ours._decoding.values()
        assert all(step.decode_tokens == 3 for step in engine.trace.steps[-4:])
        assert len(ours.decode_steps(3, 32, 4)) == 4
        assert ours.prefill_seconds(40) > 0
    finally:
        peers.prompt = original


def test_prompts_of_a_batch_are_not_alike():
    prompts = [tuple(prompt(50, salt)) for salt in range(64)]
    assert len(set(prompts)) == 64
    assert len({p[:16] for p in prompts}) == 64


def test_a_decode_step_does_not_grow_in_operator_calls():
    """The guard against slow creep: what a layer may call, whatever the batch size."""
    model = load_model("tiny")
    layers = model.config.num_hidden_layers
    calls = {}
    for rows in (1, 32):
        kv = KVCache(model.config, rows * 2, 16)
        kv.k.normal_(), kv.v.normal_()

        def step(rows=rows, kv=kv):
            with torch.inference_mode():
                model.forward(decode_batch(rows, 32), kv, paged_attention)

        step()
        calls[rows] = operator_calls(model, step)
    assert calls[32]["aten::scaled_dot_product_attention"] == layers
    assert calls[32]["aten::linear"] == 4 * layers + 1
    for name, most in {
        "aten::index_copy_": 2,
        "aten::linalg_vector_norm": 2,
        "aten::roll": 1,
        "aten::silu": 1,
        "aten::add": 2,
    }.items():
        assert calls[32][name] <= most * layers + 8, name
    # One call more a request would show here 31 times over.
    assert abs(sum(calls[32].values()) - sum(calls[1].values())) < 20


def printed(capsys, parts: str) -> dict:
    argv = ["--batches", "1,2", "--prefill", "32", "--rounds", "1", "--requests", "2"]
    argv += ["--parts", parts, "--peers", "none", "--json"]
    assert cpu.main(argv) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_one_part_runs_by_itself_and_prints_only_json(capsys):
    result = printed(capsys, "prefill")
    assert result["prefill_tokens_per_s"]["llmlab"]["32"] > 0
    assert {"floors", "ratios", "targets"} <= set(result)
    assert "transformers" in result["absent"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="torch alone takes another share elsewhere")
def test_serving_holds_weights_and_cache_in_16_bits_and_no_compiler():
    """670 MB when this was written: a second copy, 32 bits or LLVM in the process go over 700."""
    loaded_and_served()  # compiles what is new to this machine
    assert loaded_and_served()["peak_memory_mb"] < 700


@pytest.mark.full
def test_all_parts_run(capsys):
    result = printed(capsys, "decode,prefill,serving")
    assert set(result["decode_ms"]) == {"llmlab"}
    assert set(result["decode_ms"]["llmlab"]) == {"1", "2"}
    assert {"floors", "ratios", "targets", "serving", "forward_ms"} <= set(result)

"""The GPU benchmark's own logic, on the CPU with toy sizes. Nothing here measures a card."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from llmlab.bench import (
    gpu,
    gpu_attention,
    gpu_ceilings,
    gpu_model,
    gpu_overlap,
    gpu_serving,
    gpu_timing,
)
from llmlab.bench.gpu_report import as_markdown, targets
from llmlab.bench.gpu_timing import Bench, measure, relative_error, rotations, summary, within
from llmlab.config import EngineConfig
from llmlab.engine import Engine, load_model
from llmlab.trace import RequestRecord, StepRecord, TokenEvent, Trace


@pytest.fixture
def bench() -> Bench:
    return Bench(torch.device("cpu"), True, time.monotonic() + 100, {"read": 1e9, "copy": 1e9})


@pytest.fixture(scope="module")
def tiny_engine() -> Engine:
    return Engine(load_model("tiny"), EngineConfig(max_num_seqs=4, max_model_len=64))


def test_no_card_is_one_clear_sentence_and_status_2(capsys):
    if torch.cuda.is_available():
        pytest.skip("a card is here")
    assert gpu.main([]) == 2
    assert "--tiny --device cpu" in capsys.readouterr().err
    assert gpu.main(["--device", "cpu"]) == 2


def test_a_place_for_the_result_is_looked_for_before_minutes_are_spent(capsys, tmp_path):
    out = tmp_path / "no" / "gpu.json"
    assert gpu.main(["--tiny", "--device", "cpu", "--out", str(out)]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_budgets_end_within_the_total():
    """Every section at its budget and its grace: the total cuts before eight minutes."""
    assert gpu.TOTAL < 8 * 60
    assert sum(gpu.SECTIONS.values()) <= gpu.TOTAL + 10
    assert next(iter(gpu.SECTIONS)) == "ceilings"


def test_medians_and_spread_of_samples():
    timing = summary([float(i) for i in range(11)])
    assert (timing.median, timing.low, timing.high, timing.n) == (5.0, 1.0, 9.0, 11)
    assert summary([2.0]).low == summary([2.0]).high == 2.0


def test_inputs_rotate_until_the_l2_cannot_hold_them():
    assert rotations(10**12) == 1
    assert rotations(gpu_timing.L2_BYTES) == 4
    assert rotations(1) == 32


def test_rivals_take_turns(bench):
    order = []
    measure(bench, {n: [lambda n=n: order.append(n)] for n in ("ours", "peer")})
    timed = order[-4:]
    assert timed == ["ours", "peer", "ours", "peer"]


def test_a_wrong_kernel_is_not_timed(bench, monkeypatch):
    def wrong(q, *args, out=None, **kwargs):
        return torch.zeros_like(q) if out is None else out.zero_()

    monkeypatch.setattr(gpu_attention, "paged_attention", wrong)
    monkeypatch.setattr(gpu_attention, "measure", lambda *a: pytest.fail("timed"))
    rows = list(gpu_attention.run_decode(bench))
    assert {row["status"] for row in rows} == {"wrong: not timed"}
    assert all("median_us" not in row for row in rows)


def test_errors_that_rounding_does_not_explain_are_wrong():
    x = torch.randn(1000, dtype=torch.float64)
    assert within(relative_error(x.bfloat16(), x), torch.bfloat16)
    assert not within(relative_error(x * 1.02, x), torch.bfloat16)
    x[3] = torch.nan
    assert relative_error(x, torch.zeros(1000)) == float("inf")


def test_a_section_whose_time_is_up_says_so_for_each_cell(bench):
    bench.deadline = time.monotonic() - 1
    for rows in (gpu_attention.run_decode(bench), gpu_attention.run_prefill(bench)):
        assert {row["status"] for row in rows} == {"no time"}


def test_flops_and_bytes_are_those_of_the_notes_in_the_margin():
    """Llama-3.2-1B, batch 32 x 1024: 8 heads x 64 x 2 x 2 bytes a token is 64 MiB a layer."""
    llama = gpu_attention.SHAPES[2]
    kv = gpu_attention.kv_bytes(llama, 32, 1024) - 2 * 32 * 32 * 64 * 2
    assert kv == 64 * 2**20
    # 2 queries after 2: keys seen 3 + 4
    assert gpu_attention.causal_flops(llama, 1, 2, 4) == 4 * 32 * 64 * 7


def test_sdpa_and_paged_attention_see_the_same_tokens(bench):
    """The peer gets the same keys, in order, or the comparison would mean nothing."""
    for queries, context in ((1, 40), (8, 8)):
        cell = gpu_attention.make_cell(bench, gpu_attention.TINY[0], 2, queries, context)
        peer = gpu_attention._sdpa(cell, 0)().transpose(1, 2).reshape(cell.q[0].shape)
        assert relative_error(cell.call(0), peer) < 1e-5


def test_the_models_weights_are_counted_from_what_is_read(bench):
    model = gpu_model.random_model(gpu_model.TINY, bench)
    c = gpu_model.TINY
    layer = c.hidden_size * (4 + 4) * 32 + 4 * 32 * c.hidden_size
    layer += 3 * c.hidden_size * c.intermediate_size + 2 * c.hidden_size
    assert gpu_model.weight_bytes(model) == 4 * (2 * layer + c.vocab_size * c.hidden_size)


def test_figures_of_a_known_trace():
    trace = Trace()
    for name, kind, stamps in (("a", "chat", [30, 40, 70]), ("b", "document", [90])):
        record = RequestRecord(name, kind, t_sched=10)
        record.events = [TokenEvent(t * 10**6) for t in stamps]
        record.t_sched = 10 * 10**6
        trace.requests[name] = record
    found = gpu_serving.figures(trace)
    assert found["ttft_p50_ms"] == 20
    assert (found["itl_max_ms"], found["gaps"], found["output_tokens"]) == (30, 2, 4)
    assert found["output_tokens_per_s"] == pytest.approx(4 / 0.080)


def test_on_and_off_take_turns_with_the_same_plans_and_tokens(tiny_engine):
    said, steps = gpu_overlap.take_turns(tiny_engine, 2, 5, 2)
    assert said[True] == said[False]
    assert [len(tokens) for tokens in said[True]] == [5, 5]
    for found in steps.values():
        assert [len(of_one) for of_one in found] == [4, 4]  # the first tokens are the prefill's
    known = [[[s.scheduled for s in of_one] for of_one in found] for found in steps.values()]
    plans = [[[[row[1:] for row in s] for s in of_one] for of_one in found] for found in known]
    assert plans[0] == plans[1]


def test_tokens_that_differ_with_overlap_are_wrong_and_not_timed(bench, monkeypatch):
    steps = {True: [], False: []}
    monkeypatch.setattr(gpu_overlap, "take_turns", lambda *a: ({True: [[1]], False: [[2]]}, steps))
    rows = list(gpu_overlap.run(bench))
    assert [row["async_scheduling"] for row in rows] == [True, False]
    assert {row["status"] for row in rows} == {"wrong: not timed"}
    assert not any("median_us" in row for row in rows)


def test_the_share_of_a_step_in_which_the_card_works():
    steps = [StepRecord(i, 0, t, [], utilization={"device_seconds": 3e-3})
             for i, t in enumerate((0, 4_000_000, 8_000_000, 20_000_000))]  # fmt: skip
    found = gpu_overlap.figures([steps], 8)
    assert (found["median_us"], found["device_us"]) == (4000, 3000)
    assert (found["device_share"], found["tokens_per_s"]) == (0.75, 2000)


def test_ceilings_keep_the_best_of_each_name():
    rows = [{"name": "gemm", "value": 2.0}, {"name": "gemm", "value": 3.0}, {"status": "x"}]
    assert gpu_ceilings.ceilings_of(rows) == {"gemm": 3.0}


def test_a_cut_last_line_loses_only_itself(tmp_path):
    path = tmp_path / "rows"
    path.write_text('{"a": 1}\n{"a": 2}\n{"a": ')
    assert gpu._read_rows(path) == [{"a": 1}, {"a": 2}]
    assert gpu._read_rows(tmp_path / "missing") == []


@pytest.mark.slow
def test_a_section_that_hangs_is_ended_and_keeps_its_rows(monkeypatch):
    """The child writes one row and sleeps; the parent ends it and reads the row."""
    code = """
        import sys, time
        path = sys.argv[sys.argv.index("--rows") + 1]
        open(path, "w").write('{"status": "ok"}\\n')
        time.sleep(60)
    """
    real = subprocess.run

    def hang(command, **kwargs):
        return real([command[0], "-c", textwrap.dedent(code), *command[4:]], **kwargs)

    monkeypatch.setattr(gpu.subprocess, "run", hang)
    monkeypatch.setattr(gpu, "GRACE", 1.5)
    section = gpu.run_apart("gemm", gpu.parse(["--tiny", "--device", "cpu"]), 0.5, {})
    assert section["status"] == "ended after 2 s"
    assert section["rows"] == [{"status": "ok"}]


def test_a_section_that_crashes_says_why(monkeypatch):
    code = "raise SystemExit('CUDA error: an illegal memory access')"
    real = subprocess.run
    monkeypatch.setattr(
        gpu.subprocess, "run", lambda command, **kw: real([command[0], "-c", code], **kw)
    )
    section = gpu.run_apart("gemm", gpu.parse(["--tiny", "--device", "cpu"]), 5, {})
    assert section["status"] == "failed (1): CUDA error: an illegal memory access"


def result_of(**sections: list) -> dict:
    kept = {name: {"status": "ok", "seconds": 1.0, "rows": rows} for name, rows in sections.items()}
    return {"tiny": False, "card": "X", "device": "cuda", "sections": kept, "targets": []}


def test_a_target_is_held_against_the_worst_cell():
    rows = [
        {"status": "ok", "shape": "s", "batch": b, "context": 4096, "share": share}
        for b, share in ((1, 0.1), (32, 0.9), (128, 0.8))
    ]
    found = targets(result_of(decode_attention=rows))
    decode = found[0]
    assert (decode["value"], decode["met"]) == (0.8, False)
    assert all(row["met"] is None for row in found[1:])
    steps = [{"status": "ok", "of_floor": f} for f in (1.1, 1.2)]
    assert targets(result_of(decode_step=steps))[2]["met"] is True


def test_toy_sizes_meet_no_target():
    result = result_of(decode_step=[{"status": "ok", "of_floor": 1.0}]) | {"tiny": True}
    assert all(row["value"] is None and row["met"] is None for row in targets(result))
    result["targets"] = targets(result)
    assert "measures nothing" in as_markdown(result)


def test_markdown_shows_only_columns_that_have_values():
    result = result_of(gemm=[{"kernel": "gemm qkv", "status": "ok", "median_us": 1234.5678}])
    text = as_markdown(result)
    assert "| kernel | status | median_us |" in text
    assert "| gemm qkv | ok | 1235 |" in text


IN_PROCESS = (
    "ceilings",
    "prefill_attention",
    "decode_step",
    "overlap",
    "small_kernels",
    "gemm",
    "prefill",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_PROCESS)
def test_every_cell_of_a_section_is_right_and_timed(bench, name, monkeypatch):
    monkeypatch.setattr(gpu_overlap, "PROMPT", 4)
    rows = list(gpu.run_section(name)(bench))
    assert rows
    for row in rows:
        assert row.get("status", "ok") == "ok", row
        assert 0 < row["p10_us"] <= row["median_us"] <= row["p90_us"]
        json.dumps(row, allow_nan=False)


BLOCKED = "pydantic typer rich gguf yaml jinja2 pandas plotly pint fsrs httpx psutil starlette"
BLOCKER = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        caller = sys._getframe(1)
        while caller and "importlib" in caller.f_code.co_filename:
            caller = caller.f_back
        ours = caller and "llmlab" in caller.f_code.co_filename
        if ours and name.split(".")[0] in {BLOCKED.split()!r}:
            raise ModuleNotFoundError(name + " is not on the GPU machine", name=name)
        return None

sys.meta_path.insert(0, Missing())
"""


def whole_command(folder: Path, *more: str) -> dict:
    """Run the command where llmlab finds only what a GPU machine has; its JSON."""
    (folder / "sitecustomize.py").write_text(BLOCKER)
    out = folder / "gpu.json"
    command = [sys.executable, "-m", "llmlab.bench", "gpu", "--tiny", "--device", "cpu", "--json"]
    done = subprocess.run(
        [*command, "--out", str(out), *more],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(folder)},
        cwd=Path(gpu.__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout)
    assert result == json.loads(out.read_text())
    assert "# GPU benchmark: no card" in (folder / "gpu.json.md").read_text()
    for name, section in result["sections"].items():
        assert section["status"] == "ok", (name, section)
        if name not in ("ceilings", "flashinfer"):
            assert {row["status"] for row in section["rows"]} == {"ok"}, section
    return result


@pytest.mark.slow
def test_the_command_runs_without_the_rest_of_the_lab(tmp_path):
    result = whole_command(tmp_path, "--only", "decode_attention", "serving")
    assert set(result["sections"]) == {"ceilings", "decode_attention", "serving"}
    assert {"copy", "read", "gemm", "node"} == set(result["ceilings"])
    shares = [row["share"] for row in result["sections"]["decode_attention"]["rows"]]
    assert all(share > 0 for share in shares)  # the ceilings reached the section


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_whole_command_with_every_section(tmp_path):
    assert set(whole_command(tmp_path)["sections"]) == set(gpu.SECTIONS)

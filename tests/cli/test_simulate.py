"""`llmlab simulate` and `llmlab calibrate`, as a learner types them."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from llmlab.cli import calibrate, simulate
from llmlab.trace import Trace

HARDWARE = """
hardware:
  my-gpu:
    peak_tflops: {fp16: 120}
    bandwidth_gb_s: 600
    memory_gb: 24
"""
WORKLOAD = """
name: mine
classes:
  - {name: chat, share: 3, prompt_tokens: 30, output_tokens: 20}
  - {name: report, share: 1, prompt_tokens: 600, output_tokens: 8}
arrivals: {kind: poisson, request_rate: 2.5}
stop: {num_prompts: 20}
"""


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("LLMLAB_DATA_DIR", str(tmp_path / "data"))
    return tmp_path


def run(*args, app=simulate.app):
    return CliRunner().invoke(app, [str(arg) for arg in args], env={"NO_COLOR": "1"})


def test_ones_own_workload_on_ones_own_hardware(folder):
    (folder / "gpu.yaml").write_text(HARDWARE)
    (folder / "load.yaml").write_text(WORKLOAD)
    args = ("--workload", folder / "load.yaml", "--hardware-file", folder / "gpu.yaml")
    result = run(*args, "--hardware", "my-gpu", "--model", "llama-3.2-1b", "--json")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert summary["meta"]["hardware"] == "my-gpu"
    assert summary["meta"]["simulated"] is True


def test_the_help_shows_how_to_bring_both():
    text = run("--help").stdout
    for part in ("--hardware-file", "peak_tflops", "request_rate", "--workload mine.yaml"):
        assert part in text


def test_the_page_says_that_it_is_simulated():
    page = run("--users", 2, "--output-tokens", 4).stdout
    assert page.startswith("SIMULATED: llama-3.1-8b on 1 x h100-sxm")


def test_pools_say_what_they_moved_and_replicas_that_they_are_some(folder):
    args = ("--users", 2, "--prompt-tokens", 500, "--output-tokens", 4)
    apart = (*args, "--disaggregated", "1P1D", "--interconnect", "pcie-4")
    found = json.loads(run(*apart, "--json").stdout)
    moved = found["disaggregated"]
    assert moved["bytes_moved"] == moved["bytes_formula"] == 8 * 500 * 131_072
    assert set(moved["queues"]) == {"prefill 0", "decode 0"}
    assert "moves" not in found["meta"]
    page = run(*apart, "--out", folder / "run.jsonl").stdout
    assert page.startswith("SIMULATED: llama-3.1-8b on 1P1D, each 1 x h100-sxm, over pcie-4")
    assert "8 prompts moved, 0 stayed local: 524,288,000 bytes" in page
    assert len(Trace.read_jsonl(folder / "run.jsonl").meta["moves"]) == 8
    assert "on 2 replicas, each 1 x h100-sxm" in run(*args, "--replicas", 2).stdout


def test_ones_own_link_is_found_in_the_hardware_file(folder):
    links = "interconnects:\n  wire: {gb_s: 1, efficiency: 1.0, latency_us: 0, source: mine}\n"
    (folder / "gpu.yaml").write_text(HARDWARE + links)
    args = ("--hardware-file", folder / "gpu.yaml", "--hardware", "my-gpu", "--users", 1)
    apart = ("--model", "llama-3.2-1b", "--disaggregated", "1P1D", "--interconnect")
    result = run(*args, *apart, "wire", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["meta"]["interconnect"]["bandwidth"] == 1e9
    (folder / "gpu.yaml").write_text(HARDWARE)
    assert run(*args, *apart, "pcie-4").exit_code == 0


def test_the_trace_can_be_kept(folder):
    result = run("--users", 2, "--output-tokens", 4, "--out", folder / "run.jsonl")
    assert result.exit_code == 0
    assert Trace.read_jsonl(folder / "run.jsonl").simulated


def test_the_same_command_gives_the_same_figures(folder):
    (folder / "load.yaml").write_text(WORKLOAD)
    args = ("--workload", folder / "load.yaml", "--json", "--seed")
    assert run(*args, 1).stdout == run(*args, 1).stdout
    assert run(*args, 1).stdout != run(*args, 2).stdout


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--hardware", "h100-sx"), "did you mean h100-sxm"),
        (("--model", "lama-3.1-8b"), "did you mean llama-3.1-8b"),
        (("--model", "llama-3.1-70b"), "bytes are missing"),
        (("--policy", "fair"), "chunked, continuous, static"),
        (("--workload", "nothing"), "no such workload"),
        (("--users", 0), "users = 0"),
        (("--constants", "h100/x"), "unknown constants"),
        (("--weights", "fp3"), "fp32"),
        (("--hardware", "this-machine"), "llmlab calibrate"),
        (("--hardware-file", "absent.yaml"), "cannot be read"),
        (("--disaggregated", "one"), "must be like 1P1D"),
        (("--disaggregated", "0P1D"), "Pools.prefill = 0"),
        (("--disaggregated", "1P1D", "--interconnect", "pcie-9"), "did you mean pcie-"),
        (("--disaggregated", "1P1D", "--policy", "static"), "leave it out"),
        (("--disaggregated", "1P1D", "--local-below", -1), "local_below = -1"),
        (("--interconnect", "pcie-4"), "needs --disaggregated"),
        (("--replicas", 0), "replicas = 0"),
    ],
)
def test_a_mistake_is_one_sentence_on_stderr_and_status_2(args, says):
    result = run(*args)
    assert result.exit_code == 2
    assert says in " ".join(result.stderr.split())
    assert result.stdout == ""
    assert "Traceback" not in result.output


def test_list_names_what_can_be_named():
    found = json.loads(run("--list", "--json").stdout)
    assert "h100-sxm" in found["hardware"]
    assert "qwen3-30b-a3b" in found["models"]
    assert "chat_and_documents" in found["workloads"]


@pytest.mark.slow
def test_calibrate_keeps_what_simulate_then_uses():
    result = run("--model", "tiny", "--seconds", 5, "--json", app=calibrate.app)
    assert result.exit_code == 0, result.output
    kept = json.loads(result.stdout)
    assert kept["median_abs_error"] > 0
    assert kept["took_s"] < 60
    again = run("--hardware", "this-machine", "--model", "smollm2-135m", "--users", 2, "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["meta"]["hardware"] == "this-machine"


def test_a_model_that_is_not_there_is_one_sentence():
    result = run("--model", "no/such/model", app=calibrate.app)
    assert result.exit_code == 2
    assert "Traceback" not in result.output

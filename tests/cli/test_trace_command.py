"""`llmlab trace`: a run, or a saved one, as a file that Perfetto opens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from llmlab.cli.trace import app
from llmlab.trace import RequestRecord, StepRecord, TokenEvent, Trace

RUN = ["--model", "tiny", "--num-prompts", "2", "--workload"]
WORKLOAD = """
name: two
classes: [{name: chat, share: 1, prompt_tokens: 6, output_tokens: 3}]
arrivals: {kind: closed, concurrency: 2}
stop: {num_prompts: 2}
"""


@pytest.fixture
def workload(tmp_path: Path) -> str:
    path = tmp_path / "two.yaml"
    path.write_text(WORKLOAD)
    return str(path)


def test_a_run_becomes_a_chrome_trace(tmp_path, workload):
    out, saved = tmp_path / "run.json", tmp_path / "run.jsonl"
    done = CliRunner().invoke(
        app, [*RUN, workload, "--json", "--out", str(out), "--save", str(saved)]
    )
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    trace = Trace.read_jsonl(saved)
    assert (report["requests"], report["steps"]) == (2, len(trace.steps))
    chrome = json.loads(out.read_text())
    events = chrome["traceEvents"] if isinstance(chrome, dict) else chrome
    spans = [event for event in events if event.get("ph") == "X"]
    assert len(spans) >= len(trace.steps) + 2


def test_a_saved_trace_is_converted_without_a_run(tmp_path):
    trace = Trace(meta={"source": "engine"})
    record = RequestRecord("a", prompt_tokens=4, t_send=0, t_queued=1, t_first_scheduled=10)
    record.events, record.t_end, record.outcome = [TokenEvent(50)], 50, "completed"
    trace.requests["a"] = record
    trace.steps.append(StepRecord(0, 10, 50, [("a", 4, 0, False)]))
    trace.write_jsonl(tmp_path / "a.jsonl")
    out = tmp_path / "a.json"
    done = CliRunner().invoke(app, ["--from", str(tmp_path / "a.jsonl"), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "1 requests, 1 steps" in done.stdout
    assert json.loads(out.read_text())


def test_the_kernels_are_profiled_on_request(tmp_path, workload):
    kernels = tmp_path / "kernels.json"
    out = tmp_path / "run.json"
    done = CliRunner().invoke(app, [*RUN, workload, "--out", str(out), "--kernels", str(kernels)])
    assert done.exit_code == 0, done.output
    names = {event.get("name", "") for event in json.loads(kernels.read_text())["traceEvents"]}
    assert any(name.startswith("aten::") for name in names)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "fast"], "--policy fast: must be one of chunked, continuous, static"),
        (["--device", "tpu"], "device = 'tpu'"),
        (["--from", "missing.jsonl"], "missing.jsonl"),
        (["--workload", "nowhere"], "no such workload"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_status_2(tmp_path, arguments, message):
    run = ["--model", "tiny", "--out", str(tmp_path / "x.json"), *arguments]
    done = CliRunner().invoke(app, run)
    assert done.exit_code == 2
    assert message in done.output
    assert "Traceback" not in done.output

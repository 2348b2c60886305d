"""`llmlab metrics` and `llmlab compare` from outside: output, exit status, errors."""

from __future__ import annotations

import csv
import io
import json

import pytest
from typer.testing import CliRunner

from llmlab.cli import compare, metrics
from tests.measure.traces import record, trace

WORKLOAD = {
    "name": "w",
    "arrivals": {"kind": "closed", "concurrency": 1},
    "classes": [{"name": "chat", "limits": {"ttft_ms": 60, "gap_ms": 50}}],
}


def run(ttft=50, gap=20, **meta):
    records = []
    for i in range(5):
        send = 1000 * i
        events = [send + ttft + gap * j for j in range(4)]
        records.append(
            record(
                f"r{i}",
                events,
                sched=send,
                send=send,
                end=events[-1],
                prompt_tokens=9,
                completion_tokens=4,
                class_name="chat",
            )
        )
    return trace(*records, workload=WORKLOAD, **meta)


@pytest.fixture
def cli(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    run().write_jsonl("base.jsonl")
    run(ttft=70, gap=10).write_jsonl("fast.jsonl")

    def call(app, *arguments):
        result = CliRunner().invoke(app, [str(part) for part in arguments])
        if result.exception is not None:
            assert isinstance(result.exception, SystemExit), result.exception
        return result

    return call


def test_metrics_shows_the_figures_within_eighty_columns(cli):
    result = cli(metrics.app, "base.jsonl")
    assert result.exit_code == 0
    for words in ("Submitted", "TTFT, ms", "ITL (per token), ms", "Goodput, req/s", "100.0"):
        assert words in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_json_csv_and_markdown_are_the_only_thing_on_stdout(cli):
    data = json.loads(cli(metrics.app, "base.jsonl", "--json").stdout)
    assert data["classes"]["chat"]["ttft_ms"]["p95"] == 50
    assert data["all"]["attainment"] == 1.0
    keys = json.loads(cli(metrics.app, "base.jsonl", "--vllm").stdout)
    assert keys["mean_itl_ms"] == 20
    rows = list(csv.DictReader(io.StringIO(cli(metrics.app, "base.jsonl", "--csv").stdout)))
    assert {"class", "figure", "p95", "value"} <= set(rows[0])
    assert cli(metrics.app, "base.jsonl", "--markdown").stdout.startswith("| Requests | all |")


def test_limits_on_the_command_line_replace_those_of_the_workload(cli):
    strict = cli(metrics.app, "base.jsonl", "--json", "--goodput", "chat.ttft:49")
    data = json.loads(strict.stdout)
    assert (data["all"]["good"], data["all"]["judged"]) == (0, 5)
    assert data["all"]["misses"] == {"ttft_ms": 5}
    both = cli(metrics.app, "base.jsonl", "--json", "--goodput", "ttft:50", "--goodput", "gap:19")
    assert json.loads(both.stdout)["all"]["misses"] == {"gap_ms": 5}


def test_a_window_is_given_in_seconds_from_the_first_send(cli):
    data = json.loads(cli(metrics.app, "base.jsonl", "--json", "--window", 1, 3).stdout)
    assert data["all"]["counts"]["submitted"] == 2
    assert data["all"]["rates"]["output_tok_s"] == 4


def test_percentiles_and_intervals_on_request(cli):
    options = ("--metric-percentiles", "50,90,99.9", "--bootstrap", 20)
    entry = json.loads(cli(metrics.app, "base.jsonl", "--json", *options).stdout)["all"]["ttft_ms"]
    assert {"p50", "p90", "p99.9"} <= set(entry)
    assert entry["ci95"]["mean"] == [50, 50]
    assert "95 % interval" in cli(metrics.app, "base.jsonl", "--bootstrap", 20).stdout


def test_a_page_is_written_where_asked(cli, tmp_path):
    result = cli(metrics.app, "base.jsonl", "--html", "page.html")
    assert result.exit_code == 0
    assert "wrote page.html" in result.stderr
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nope.jsonl"], "nope.jsonl: no such file"),
        (["base.jsonl", "--goodput", "ttf:5"], "'ttf:5': must be NAME:MILLISECONDS"),
        (["base.jsonl", "--goodput", "chta.ttft:5"], "class 'chta' must be one of chat"),
        (["base.jsonl", "--goodput", "ttft:fast"], "'fast' must be a number"),
        (["base.jsonl", "--goodput", "ttft:-5"], "Limits.ttft_ms = -5.0: must be"),
        (["base.jsonl", "--window", "3", "1"], "--window 3 1: must be START < END"),
        (["base.jsonl", "--metric-percentiles", "50,x"], "must be numbers in 0..100"),
        (["broken.jsonl"], "broken.jsonl:1: not a trace line"),
        (["base.jsonl", "--html", "no/such/folder/x.html"], "No such file or directory"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(cli, tmp_path, arguments, words):
    (tmp_path / "broken.jsonl").write_text("{]\n")
    result = cli(metrics.app, *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_a_trace_that_cannot_be_true_is_refused(cli):
    bad = run()
    bad.requests["r0"].completion_tokens = 1
    bad.write_jsonl("bad.jsonl")
    result = cli(metrics.app, "bad.jsonl")
    assert result.exit_code == 2
    assert "request r0: 4 tokens were streamed but completion_tokens says 1" in result.stderr


def test_compare_gives_the_verdict_against_the_workloads_limits(cli):
    result = cli(compare.app, "base.jsonl", "fast.jsonl")
    assert result.exit_code == 0
    text = " ".join(result.stdout.split())
    assert "fast fails" in text
    assert "chat TTFT p95 70 > 60 ms" in text
    assert "For the stated mix and targets, test" in text
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_compare_refuses_with_a_status_of_its_own(cli):
    shorter = run()
    for one in shorter.requests.values():
        one.events.pop()
        one.completion_tokens = 3
    shorter.write_jsonl("short.jsonl")
    result = cli(compare.app, "base.jsonl", "short.jsonl")
    assert result.exit_code == 3
    assert "No verdict" in result.stdout
    assert "output lengths of class chat" in result.stdout
    data = json.loads(cli(compare.app, "base.jsonl", "short.jsonl", "--json").stdout)
    assert data["comparable"] is False
    assert data["passes"] is None


def test_help_shows_an_example():
    for app, words in ((metrics.app, "llmlab metrics run.jsonl"), (compare.app, "llmlab compare")):
        result = CliRunner().invoke(app, ["--help"])
        assert result.exit_code == 0
        assert words in result.stdout

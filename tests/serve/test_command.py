"""`llmlab serve` and `llmlab bench serve` as a user runs them: processes, signals, statuses."""

from __future__ import annotations

import html
import json
import os
import signal
import subprocess
import sys
import threading
import time

import httpx
import pytest

from llmlab.bench import serve as bench
from llmlab.serve.child import child_server
from llmlab.trace import Trace
from tests.measure.stub_server import DONE, frame, stream, stub_server, token, usage


def llmlab(*args: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "llmlab.cli.main", *args],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1", **environment},
        timeout=120,
    )


pytestmark = pytest.mark.slow

# -- llmlab serve --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def child():
    with child_server(["--model", "tiny", "--max-num-seqs", "4"]) as server:
        yield server


def ask(url: str, **body) -> httpx.Response:
    body = {"model": "tiny", "prompt": "Hello", "ignore_eos": True, **body}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=60)


def test_sigterm_lets_the_running_answer_finish_and_ends_with_0():
    with child_server(["--model", "tiny"]) as server:
        answers = []
        thread = threading.Thread(
            target=lambda: answers.append(ask(server.base_url, max_tokens=400, stream=True))
        )
        thread.start()
        while "generation_tokens_total" not in (
            text := httpx.get(f"{server.base_url}/metrics").text
        ):
            pass
        while float(text.split("generation_tokens_total{")[1].split("}")[1].split()[0]) < 3:
            text = httpx.get(f"{server.base_url}/metrics").text
        server.process.send_signal(signal.SIGTERM)
        thread.join()
        assert answers[0].text.endswith("data: [DONE]\n\n")
        assert server.process.wait(20) == 0
        with pytest.raises(httpx.ConnectError):
            ask(server.base_url)


def test_ctrl_c_ends_with_130():
    with child_server(["--model", "tiny"]) as server:
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(20) == 130
        assert "Traceback" not in server.said()


def test_json_mode_prints_one_line_and_the_engine_has_the_knobs(child):
    assert child.model == "tiny"
    assert child.base_url.startswith("http://127.0.0.1:")
    trace = Trace.from_jsonl(httpx.get(f"{child.base_url}/trace").text.splitlines())
    assert trace.meta["config"]["max_num_seqs"] == 4


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--host", "0.0.0.0"], "API key"),
        (["--model", "no-such-model"], "no-such-model"),
        (["--max-num-seqs", "0"], "max_num_seqs"),
        (["--port", "70000"], "port"),
        (["--api-key-file", "/no/such/file"], "No such file"),
        (["--async-scheduling", "maybe"], "must be auto, on or off"),
        (["--model", "tiny", "--device", "tpu"], "must be auto"),
        (
            ["--model", "tiny", "--device", "cpu", "--gpu-memory-utilization", "0.8"],
            "left out without a CUDA device",
        ),
    ],
)
def test_what_cannot_work_is_one_sentence_and_status_2(args, words):
    done = llmlab("serve", *args)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_taken_port_is_said(child):
    port = child.base_url.rsplit(":", 1)[1]
    done = llmlab("serve", "--model", "tiny", "--port", port)
    assert (done.returncode, "--port 0" in done.stderr) == (2, True)


def test_the_key_comes_from_a_file_and_is_never_printed(tmp_path):
    key = "file-key-0123456789"
    (tmp_path / "key").write_text(key + "\n")
    options = ["--model", "tiny", "--api-key-file", str(tmp_path / "key")]
    with child_server(options) as server:
        assert httpx.get(f"{server.base_url}/v1/models").status_code == 401
        headers = {"Authorization": f"Bearer {key}"}
        assert httpx.get(f"{server.base_url}/v1/models", headers=headers).status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert key not in server.said() + server.process.stdout.read()


def test_help_has_examples_and_fits_80_columns():
    for command in (["serve", "--help"], ["bench", "serve", "--help"]):
        done = llmlab(*command)
        assert done.returncode == 0
        assert "xamples" in done.stdout
        assert max(map(len, done.stdout.splitlines())) <= 80


# -- llmlab bench serve --------------------------------------------------------------------


def run_bench(capsys, *args: str) -> tuple[int, dict, str]:
    status = bench.main([*args, "--json"])
    text = capsys.readouterr()
    return status, json.loads(text.out) if text.out else {}, text.err


def test_bench_measures_a_server_per_class_with_the_familiar_keys(child, capsys, tmp_path):
    status, data, _ = run_bench(
        capsys, "--base-url", child.base_url, "--workload", "chat_and_documents_cpu",
        "--num-prompts", "6", "--max-concurrency", "3", "--goodput", "ttft:60000",
        "--prices", "input=1,output=2", "--trace", str(tmp_path / "t.jsonl"),
        "--out", str(tmp_path / "r.json"), "--metadata", "who=me",
    )  # fmt: skip
    assert status == 0
    assert data["completed"] == 6
    assert data["total_input_tokens"] == 3 * 64 + 3 * 1024, "prompts are exact in length"
    assert data["total_output_tokens"] == 3 * 32 + 3 * 16, "and answers too"
    assert set(data["summary"]["classes"]) == {"chat", "document"}
    assert data["median_ttft_ms"] > 0
    assert data["request_goodput"] > 0
    assert data["count_sources"] == {"usage": 6}
    assert data["bill"]["total"] == str((3 * 64 + 3 * 1024 + 2 * (3 * 32 + 3 * 16)) / 1e6)
    assert data["metadata"] == {"who": "me"}
    assert json.loads((tmp_path / "r.json").read_text()) == data
    assert len(Trace.read_jsonl(tmp_path / "t.jsonl").requests) == 6


def test_bench_ramps_up_and_writes_the_timeline(child, capsys, tmp_path):
    status, data, said = run_bench(
        capsys, "--base-url", child.base_url, "--num-prompts", "6", "--random-output-len", "4",
        "--ramp-up-strategy", "linear", "--ramp-up-start-rps", "20", "--ramp-up-end-rps", "80",
        "--plot-timeline", "--result-dir", str(tmp_path), "--result-filename", "r.json",
    )  # fmt: skip
    assert (status, data["completed"]) == (0, 6)
    assert data["workload"]["arrivals"]["ramp_up_end_rps"] == 80
    assert str(tmp_path / "r.timeline.html") in said
    assert "Each request's time" in html.unescape((tmp_path / "r.timeline.html").read_text())


def test_bench_runs_twice_on_one_server_and_by_chat_too(child, capsys):
    for endpoint in ("/v1/completions", "/v1/chat/completions"):
        status, data, _ = run_bench(
            capsys, "--base-url", child.base_url, "--num-prompts", "3", "--endpoint", endpoint,
            "--random-input-len", "8", "--random-output-len", "4",
        )  # fmt: skip
        assert (status, data["completed"], data["total_output_tokens"]) == (0, 3, 12)


def test_bench_without_a_url_starts_the_engine_and_shows_both_sides(capsys):
    status, data, _ = run_bench(
        capsys, "--model", "tiny", "--num-prompts", "4", "--random-output-len", "8",
        "--engine", "max-num-seqs=2",
    )  # fmt: skip
    assert status == 0
    assert data["k_sources"] == {"usage_growth": 4}
    assert data["server"]["all"]["counts"]["completed"] == 4
    figures = {row["figure"]: row for row in data["transport"]}
    assert figures["ttft p50"]["client"] >= figures["ttft p50"]["server"]


def test_bench_prints_tables_for_people_within_80_columns(child):
    done = llmlab(
        "bench", "serve", "--base-url", child.base_url, "--num-prompts", "3",
        "--random-output-len", "4", "--prices", "input=1,output=2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for word in ("TTFT", "TPOT", "ITL", "E2E", "tok/s", "charge"):
        assert word in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_bench_on_a_server_that_dies_reports_the_failures_and_keeps_the_rest(capsys):
    models = json.dumps({"data": [{"id": "m"}]}).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(models)}\r\n\r\n".encode()
    good = stream(frame({**token("a"), "usage": usage(1)}), DONE)

    def script(number: int) -> list:
        return [head + models] if number == 0 else good if number < 4 else ["cut"]

    with stub_server(script) as stub:
        status, data, _ = run_bench(
            capsys, "--base-url", stub.url, "--num-prompts", "5", "--num-warmups", "0",
            "--max-concurrency", "1",
        )  # fmt: skip
    assert (status, data["completed"], data["failed"]) == (0, 3, 2)
    assert sum(data["failures"].values()) == 2
    assert all("connection" in reason for reason in data["failures"])


def test_bench_that_completes_nothing_ends_with_1(capsys):
    models = json.dumps({"data": [{"id": "m"}]}).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(models)}\r\n\r\n".encode()
    with stub_server(lambda number: [head + models] if number == 0 else ["cut"]) as stub:
        status, data, _ = run_bench(
            capsys, "--base-url", stub.url, "--num-prompts", "2", "--num-warmups", "0"
        )
    assert (status, data["completed"], data["median_ttft_ms"]) == (1, 0, None)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--base-url", "http://127.0.0.1:9"], "no server at"),
        (["--base-url", "nonsense"], "base_url"),
        (["--workload", "nope"], "no such workload"),
        (["--goodput", "speed:1"], "--goodput"),
        (["--prices", "input=1"], "prices"),
        (["--metric-percentiles", "150"], "--metric-percentiles"),
        (["--percentile-metrics", "zzz"], "--percentile-metrics"),
        (["--header", "novalue"], "--header"),
        (["--num-prompts", "0"], "num_prompts"),
        (["--ramp-up-strategy", "linear", "--ramp-up-end-rps", "2"], "--ramp-up-start-rps"),
        (
            [
                "--ramp-up-strategy",
                "linear",
                "--ramp-up-start-rps",
                "1",
                "--ramp-up-end-rps",
                "2",
                "--request-rate",
                "4",
            ],
            "in place of --request-rate",
        ),
        (["--tokenizer", "/no/such"], "--tokenizer"),
    ],
)
def test_a_fault_of_the_call_is_one_sentence_and_status_2(child, capsys, args, words):
    url = [] if "--base-url" in args else ["--base-url", child.base_url]
    status = bench.main([*url, *args])
    text = capsys.readouterr()
    assert status == 2
    assert text.out == ""
    assert words in text.err
    assert text.err.count("\n") <= 2


def test_a_missing_key_is_explained(tmp_path, capsys, monkeypatch):
    body = json.dumps({"error": {"message": "no"}}).encode()
    head = f"HTTP/1.1 401 No\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-secret")
    with stub_server([head + body]) as stub:
        assert bench.main(["--base-url", stub.url]) == 2
        assert b"Bearer sk-secret-secret" in stub.requests[0]
    text = capsys.readouterr()
    assert "--api-key-env" in text.err
    assert "sk-secret" not in text.err


def test_ctrl_c_keeps_what_was_measured(child, tmp_path):
    out = tmp_path / "r.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "llmlab.cli.main", "bench", "serve", "--base-url", child.base_url,
         "--num-prompts", "1000", "--request-rate", "10", "--random-output-len", "4",
         "--json", "--out", str(out)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    time.sleep(4)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130, stderr
    data = json.loads(stdout)
    assert data["interrupted"] is True
    assert 0 < data["completed"] < 1000
    assert "Traceback" not in stderr

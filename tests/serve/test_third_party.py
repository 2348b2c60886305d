"""A third party measures what we measure: guidellm's client on our server, our client on its mock.

The tables are printed; with LLMLAB_AGREEMENT_OUT=FILE.json they are also written there.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest

from llmlab.measure.client import Call, Endpoint, LoadClient
from llmlab.measure.metrics import request_metrics, summarize
from llmlab.serve.child import child_server
from llmlab.trace import Trace
from tests.serve.guidellm_venv import guidellm, mock_server

# Timed against a second program that is a long install: no test for every change.
pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]

MODEL = "smollm2-135m"
STREAMS, COUNT, PROMPT, OUTPUT = 2, 16, 64, 32
TTFT, ITL, TOKENS = 100.0, 10.0, 32
TRIES = 3  # a busy machine may delay one side once; another definition would differ every time


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def agree(a: float, b: float) -> bool:
    """Within 5 % or 2 ms."""
    return abs(a - b) <= max(2.0, 0.05 * abs(b))


def table(title: str, rows: list[tuple[str, float, float, str]], heads=("theirs", "ours")) -> None:
    print(f"\n{title}\n{'figure':<38}{heads[0]:>12}{heads[1]:>12}{'diff':>9}   note")
    for name, a, b, note in rows:
        print(f"{name:<38}{a:>12.3f}{b:>12.3f}{a - b:>9.3f}   {note}")


def store(section: str, rows: list[tuple[str, float, float, str]], **about) -> None:
    path = os.environ.get("LLMLAB_AGREEMENT_OUT")
    if not path:
        return
    file = Path(path)
    data = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    listed = [dict(zip(("figure", "a", "b", "note"), row, strict=True)) for row in rows]
    data[section] = {**about, "rows": listed}
    file.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


# -- their client, our server --------------------------------------------------------------


def tokenizer_folder(folder: Path) -> Path:
    """The model's tokenizer where a Hugging Face loader finds it."""
    from llmlab.engine import load_model

    load_model(MODEL).tokenizer.backend.save(str(folder / "tokenizer.json"))
    special = {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def run_guidellm(url: str, folder: Path) -> dict:
    out = folder / "out.json"
    command = [
        guidellm(), "run",
        "--backend", f"kind=openai_http,target={url},model={MODEL}",
        "--tokenizer", f"kind=hf_auto,model={folder}",
        "--profile", f"kind=concurrent,streams={STREAMS}",
        "--constraint", f"kind=max_requests,count={COUNT}",
        "--data", f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={OUTPUT}",
        "--output", f"kind=json,path={out}",
        "--disable-progress",
    ]  # fmt: skip
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(out.read_text(encoding="utf-8"))["benchmarks"][0]


def compared(theirs: dict, trace: Trace) -> tuple[list, list]:
    """(rows that must agree, rows that are only shown) of guidellm's run and the server's trace."""
    asked = {
        r["response_id"]: r["time_to_first_token_ms"] for r in theirs["requests"]["successful"]
    }
    ours = Trace(trace.meta, {name: trace.requests[name] for name in asked}, trace.steps)
    each = [request_metrics(record) for record in ours.requests.values()]
    assert [m.n for m in each] == [OUTPUT] * COUNT
    group = summarize(ours).all
    metric = {name: (theirs["metrics"][name] or {}).get("successful") for name in theirs["metrics"]}
    ttft = [m.ttft for m in each]
    lag = float(np.median([asked[m.request_id] - m.ttft for m in each]))
    with_ttft_inside = sum(m.e2e for m in each) / sum(m.n for m in each)
    its_tpot = metric["time_per_output_token_ms"]["mean"]
    must = [
        ("TTFT mean, ms", metric["time_to_first_token_ms"]["mean"], group["ttft"].mean, ""),
        ("TTFT median + paired lag, ms", group["ttft"].p50 + lag, group["ttft"].p50,
         "lag: median over the same requests"),
        ("ITL mean, ms", metric["inter_token_latency_ms"]["mean"], group["itl"].mean, ""),
        ("output throughput, tok/s", metric["output_tokens_per_second"]["mean"],
         group.rates.output_tok_s, ""),
        ("its TPOT by its formula, ms", its_tpot, with_ttft_inside,
         "(last token - send) / N: TTFT inside"),
    ]  # fmt: skip
    # Its percentile is a sample (inverse CDF) where numpy's default interpolates.
    median = float(np.percentile(ttft, 50, method="inverted_cdf"))
    shown = [
        ("TTFT median, ms", metric["time_to_first_token_ms"]["median"], median, "inverse CDF"),
        ("its TPOT beside ours, ms", its_tpot, group["tpot"].mean, "two definitions"),
        ("  and TTFT / N, ms", its_tpot - group["tpot"].mean, float(np.mean(ttft)) / OUTPUT,
         "what the difference is made of"),
    ]  # fmt: skip
    return must, shown


def test_guidellm_reads_from_our_server_what_the_servers_own_trace_says(tmp_path):
    folder = tokenizer_folder(tmp_path)

    def measure() -> tuple[list, list]:
        with child_server(["--model", MODEL]) as server:
            theirs = run_guidellm(server.base_url, folder)
            lines = httpx.get(f"{server.base_url}/trace").text.splitlines()
        return compared(theirs, Trace.from_jsonl(lines))

    for _ in range(TRIES):
        must, shown = measure()
        if all(agree(a, b) for _, a, b, _ in must):
            break
    title = f"guidellm 0.8.1 on llmlab serve: {MODEL}, {COUNT} requests, {STREAMS} streams"
    table(title, [*must, *shown], ("guidellm", "server"))
    store("guidellm_client_on_our_server", [*must, *shown], a="guidellm", b="server's own trace",
          model=MODEL, requests=COUNT, streams=STREAMS, output_tokens=OUTPUT)  # fmt: skip
    for name, a, b, _ in must:
        assert agree(a, b), f"{name}: guidellm {a}, server {b}"
    tpot_gap, ttft_share = shown[2][1:3]
    assert tpot_gap == pytest.approx(ttft_share, rel=0.4), "the TTFT explains its TPOT"


# -- our client, their server --------------------------------------------------------------


def raw_request(port: int) -> tuple[int, list[tuple[int, bytes]]]:
    """One streamed completion over a bare socket: send stamp, then (stamp, bytes) of each read."""
    body = json.dumps(
        {"model": "m", "prompt": "hi", "max_tokens": TOKENS, "stream": True,
         "stream_options": {"include_usage": True}}
    ).encode()  # fmt: skip
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    reads = []
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sent = time.perf_counter_ns()
        connection.sendall(head.encode() + body)
        while data := connection.recv(65536):
            reads.append((time.perf_counter_ns(), data))
    return sent, reads


def raw_stamps(reads: list[tuple[int, bytes]]) -> list[int]:
    """Stamps of the reads that brought a frame with text, found by plain search."""
    return [t for t, data in reads for line in data.split(b"\n") if b'"text":' in line
            and b'"text":""' not in line and b'"text": ""' not in line]  # fmt: skip


def both_clients(url: str, port: int, rounds: int) -> list[tuple[str, float, float, str]]:
    """Our client and a bare socket, in turns, so that both meet the same drift of the mock.

    One run of ours with a request a turn, so that all but the first find their connection open,
    as the bare socket does when it stamps its send.
    """
    turn = 1.3 * (TTFT + ITL * TOKENS) / 1e3  # seconds
    client = LoadClient(Endpoint(url, "m"))
    calls = [Call(f"r{i}", "hi", TOKENS, t_sched_ns=int(2e9 * turn * i)) for i in range(rounds)]
    ours = threading.Thread(target=lambda: asyncio.run(client.run(calls)))
    start = time.monotonic()
    ours.start()
    ttft, gaps, tokens = [], [], []
    for i in range(rounds):
        time.sleep(max(0.0, start + turn * (2 * i + 1) - time.monotonic()))
        sent, reads = raw_request(port)
        stamps = raw_stamps(reads)
        ttft.append((stamps[0] - sent) / 1e6)
        gaps += list(np.diff(stamps) / 1e6)
        tokens.append(len(stamps))
    ours.join()
    records = list(client.trace.requests.values())
    assert [r.outcome for r in records] == ["completed"] * rounds
    assert {sum(event.k for event in r.events) for r in records} == {TOKENS}
    group = summarize(client.trace).all
    return [
        ("TTFT median, ms", group["ttft"].p50, float(np.median(ttft)), f"mock: {TTFT:g}"),
        ("gap median, ms", group["itl"].p50, float(np.median(gaps)), f"mock: {ITL:g}"),
        ("tokens", group.output_len.mean, float(np.mean(tokens)), f"mock: {TOKENS}"),
    ]


def test_our_client_reads_from_the_mock_what_a_raw_socket_reads():
    port, rounds = free_port(), 8
    with mock_server(port, ttft_ms=TTFT, itl_ms=ITL, output_tokens=TOKENS) as url:
        both_clients(url, port, 2)  # warm
        for _ in range(TRIES):
            rows = both_clients(url, port, rounds)
            if all(abs(a - b) < 2 for _, a, b, _ in rows):
                break
    table("llmlab's client on guidellm's mock server", rows, ("client", "raw socket"))
    store("our_client_on_guidellm_mock", rows, a="llmlab client", b="raw socket, same run",
          requests=rounds)  # fmt: skip
    for name, a, b, _ in rows:
        assert abs(a - b) < 2, f"{name}: client {a}, raw socket {b}"
    assert rows[2][1] == rows[2][2] == TOKENS


def test_the_mocks_injected_failures_are_counted_one_by_one():
    good, bad = 5, 4
    with mock_server(free_port(), ttft_ms=20, itl_ms=2, output_tokens=4,
                     fail_after_requests=good) as url:  # fmt: skip
        client = LoadClient(Endpoint(url, "m"))
        calls = [Call(f"r{i}", "hi", 4) for i in range(good + bad)]
        asyncio.run(client.run(calls, max_concurrency=1))
    counts = summarize(client.trace).all.counts
    assert (counts.completed, counts.failed) == (good, bad)
    reasons = {r.reason for r in client.trace.requests.values() if r.outcome == "failed"}
    assert all(reason.startswith("HTTP 500") for reason in reasons)


def test_the_mocks_queue_is_seen_in_the_whole_time_of_each_request():
    """Its queue holds answers in one piece only: a streamed one leaves it as it begins."""
    latency, n = 0.2, 4
    with mock_server(free_port(), request_latency=latency, output_tokens=4,
                     max_concurrent_requests=1) as url:  # fmt: skip
        endpoint = Endpoint(url, "m", stream=False)
        asyncio.run(LoadClient(endpoint).run([Call("warm", "hi", 4)]))
        client = LoadClient(endpoint)
        asyncio.run(client.run([Call(f"r{i}", "hi", 4) for i in range(n)], max_concurrency=n))
    waits = sorted(request_metrics(r).e2e for r in client.trace.requests.values())
    # Each waits for all before it; those sent later have a little less, a busy machine adds some.
    for i, wait in enumerate(waits):
        turn = 1e3 * latency * (i + 1)
        assert 0.85 * turn < wait < 1.7 * turn, waits
    group = summarize(client.trace).all
    assert group["ttft"].n == 0, "an answer in one piece has no first token"
    assert group.concurrency_peak == n

"""256 streams at once on the tiny model: nothing lost, nothing doubled, nothing left behind."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time

import psutil
import pytest

from llmlab.config import EngineConfig
from llmlab.engine import Engine, load_model
from llmlab.measure.client import Endpoint, LoadClient
from llmlab.measure.metrics import summarize
from llmlab.serve.server import running
from llmlab.serve.settings import ServeConfig
from tests.serve.crowd import KINDS, calls, params, solo_texts

STREAMS = 256
CONFIG = EngineConfig(max_num_seqs=256, num_blocks=2048, max_num_batched_tokens=1024)


def soak(seconds: float) -> dict:
    model = load_model("tiny")
    solo = solo_texts(model, CONFIG)
    engine = Engine(model, CONFIG)
    config = ServeConfig(port=0, trace_requests=500, trace_steps=500)
    process = psutil.Process()
    with running(engine, config) as url:
        endpoint = Endpoint(url, "tiny", continuous_usage=True)
        warm = LoadClient(endpoint)
        first = itertools.islice(calls("warm"), STREAMS + 64)
        asyncio.run(warm.run(first, max_concurrency=STREAMS))
        before = process.memory_info().rss
        # The client's list of socket reads would outgrow everything whose growth is looked at.
        client = LoadClient(endpoint, keep_text=True, on_end=lambda record: record.reads.clear())
        asyncio.run(client.run(calls(), max_concurrency=STREAMS, duration_s=seconds))
        kept = sum(len(text) for text in client.texts.values())
        grown = process.memory_info().rss - before
        deadline = time.monotonic() + 5
        while engine.scheduler.num_blocks_used and time.monotonic() < deadline:
            time.sleep(0.01)
    engine.scheduler.check_integrity()
    records = client.trace.requests
    wrong = [
        name
        for name, record in records.items()
        if record.outcome == "completed" and client.texts[name] != solo[int(name) % KINDS]
    ]
    doubled = [
        name
        for name, record in records.items()
        if record.outcome == "completed"
        and not (
            sum(event.k for event in record.events)
            == record.completion_tokens
            == params(int(name) % KINDS).max_tokens
        )
    ]
    group = summarize(client.trace).all
    return {
        "seconds": seconds,
        "streams": STREAMS,
        "completed": group.counts.completed,
        "cancelled": group.counts.cancelled,
        "failed": group.counts.failed + group.counts.rejected,
        "concurrency_peak": group.concurrency_peak,
        "output_tok_s": group.rates.output_tok_s,
        "ttft_p50_ms": group["ttft"].p50,
        "itl_p50_ms": group["itl"].p50,
        "itl_p99_ms": group["itl"].p99,
        "wrong_texts": len(wrong),
        "lost_or_doubled": len(doubled),
        "blocks_left": engine.scheduler.num_blocks_used,
        "requests_in_server_trace": len(engine.trace.requests),
        "steps_in_server_trace": len(engine.trace.steps),
        "rss_growth_mb": grown / 2**20,
        "kept_text_mb": kept / 2**20,
    }


def check(seconds: float) -> None:
    figures = soak(seconds)
    print(json.dumps(figures, indent=2))
    if path := os.environ.get("LLMLAB_SOAK_OUT"):
        with open(path, "w", encoding="utf-8") as out:
            json.dump(figures, out, indent=2)
    assert figures["concurrency_peak"] == STREAMS
    assert figures["completed"] > STREAMS
    assert figures["cancelled"] > 0
    assert figures["failed"] == 0
    assert figures["wrong_texts"] == 0
    assert figures["lost_or_doubled"] == 0
    assert figures["blocks_left"] == 0
    assert figures["requests_in_server_trace"] < 500 * 1.1 + 1000
    assert figures["steps_in_server_trace"] < 500 * 1.1 + 2
    # What the client keeps of a request, to compare it afterwards, is some kB; the rest is flat.
    kept = 0.006 * (figures["completed"] + figures["cancelled"])
    assert figures["rss_growth_mb"] < 20 + kept


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_256_streams_for_20_seconds():
    check(20.0)


@pytest.mark.full
@pytest.mark.timeout(400)
def test_256_streams_for_60_seconds():
    check(60.0)

"""Soak: a server on the tiny model under waves of clients, for as long as you like.

python -m tests.serve.soak 1200        twenty minutes; prints its figures as JSON

A wave is a burst: 1 to 256 streams at once, more than the pool holds, every eighth leaves early.
At every step the scheduler's laws are checked; after every wave each finished text equals its solo
run, and no block, stream or request is left.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections import Counter
from random import Random
from typing import Any

import psutil
import torch

from llmlab.config import EngineConfig
from llmlab.engine import Engine, TokenOutput, load_model
from llmlab.measure.client import Endpoint, LoadClient
from llmlab.serve.server import running
from llmlab.serve.settings import ServeConfig
from llmlab.trace import RequestRecord
from tests.serve.crowd import KINDS, calls, params, solo_texts
from tests.soaking import main, memory

MOST = 256
KEEP = 500  # ended requests and steps that the server's trace remembers
WARM = 0.25  # share of the time until caches and the trace are as full as they get
CONFIG = EngineConfig(
    max_num_batched_tokens=256, max_num_seqs=64, block_size=4, num_blocks=400, max_model_len=256
)


class Watched(Engine):
    """Checks the scheduler's laws at every step."""

    steps = preempted = 0

    def step(self) -> list[TokenOutput]:
        before = len(self.trace.steps)
        outputs = super().step()
        self.scheduler.check_integrity()
        for record in self.trace.steps[before:]:
            self.steps += 1
            self.preempted += len(record.preempted)
        return outputs


class Wave:
    """One burst of clients, and what each must have got."""

    def __init__(self, solo: dict[int, str], counts: Counter[str]) -> None:
        self.solo, self.counts = solo, counts

    def ride(self, url: str, count: int) -> None:
        endpoint = Endpoint(url, "tiny", continuous_usage=True)
        client = LoadClient(endpoint, keep_text=True)
        asyncio.run(client.run(itertools.islice(calls(), count), max_concurrency=count))
        for record in client.trace.requests.values():
            self._check(record, client.texts.get(record.request_id, ""))
        self.counts["waves"] += 1

    def _check(self, record: RequestRecord, text: str) -> None:
        name, kind = record.request_id, int(record.request_id) % KINDS
        assert record.outcome in ("completed", "cancelled"), f"{name}: {record.reason}"
        self.counts[record.outcome] += 1
        if record.outcome == "cancelled":
            assert self.solo[kind].startswith(text), f"{name}: not the beginning of its answer"
            return
        tokens = sum(event.k or 0 for event in record.events)
        assert tokens == record.completion_tokens == params(kind).max_tokens, f"{name}: {tokens}"
        assert text == self.solo[kind], f"{name}: not its solo answer"
        self.counts["tokens"] += tokens


def idle(engine: Engine, patience: float = 10.0) -> None:
    """Nothing left alive: every block is free again."""
    deadline = time.monotonic() + patience
    while engine.scheduler.num_blocks_used and time.monotonic() < deadline:
        time.sleep(0.01)
    assert engine.scheduler.num_blocks_used == 0, "blocks were not given back"


def soak(seconds: float, seed: int = 0) -> dict[str, Any]:
    """Figures of a soak of `seconds`; AssertionError at the first broken law."""
    torch.set_num_threads(1)
    model = load_model("tiny", dtype=torch.float64)
    counts: Counter[str] = Counter()
    wave, rng = Wave(solo_texts(model, CONFIG), counts), Random(seed)
    engine, process, sizes = Watched(model, CONFIG), psutil.Process(), []
    config = ServeConfig(port=0, trace_requests=KEEP, trace_steps=KEEP)
    start = time.monotonic()
    with running(engine, config) as url:
        while (now := time.monotonic() - start) < seconds:
            wave.ride(url, MOST if counts["waves"] % 4 == 0 else rng.randrange(1, MOST))
            idle(engine)
            if now >= WARM * seconds:
                sizes.append(process.memory_info().rss)
    if len(sizes) < 10:
        raise ValueError(f"{seconds:g} s are too few here: {len(sizes)} waves after the warm-up")
    return {
        "seconds": round(time.monotonic() - start, 1),
        **{name: counts[name] for name in sorted(counts)},
        "steps": engine.steps,
        "preempted": engine.preempted,
        "blocks_left": engine.scheduler.num_blocks_used,
        **memory(sizes),
    }


if __name__ == "__main__":
    sys.exit(main(soak, sys.argv[1:]))

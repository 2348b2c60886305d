"""Soak: the tiny model under random adds, bursts, aborts and preemptions, for as long as you like.

python -m tests.engine.soak 1200        twenty minutes; prints its figures as JSON

Two engines take turns, one with overlapped steps. At every step the scheduler's laws are checked;
every finished output must equal the same request's solo run, every aborted one be its beginning.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from random import Random
from typing import Any

import psutil
import torch

from llmlab.config import EngineConfig
from llmlab.engine import Engine, Model, load_model
from llmlab.sched import SamplingParams
from tests.soaking import main, memory

KINDS = 48
MOST_LIVE = 120
WARM_STEPS = 1500  # until caches and the trace are as full as they get
SAMPLES = 2000
KEEP = 200  # ended requests and steps that the trace remembers
CONFIG = EngineConfig(
    max_num_batched_tokens=40,
    max_num_seqs=16,
    block_size=4,
    num_blocks=120,
    max_model_len=256,
    enable_prefix_caching=True,
)


def prompt(kind: int) -> list[int]:
    """Every third kind begins like its neighbours."""
    rng, stem = Random(kind), Random(kind // 3)
    shared = [stem.randrange(32, 127) for _ in range(12)]
    return shared + [rng.randrange(32, 127) for _ in range(rng.randrange(1, 60))]


def params(kind: int) -> SamplingParams:
    heat = 0.0 if kind % 4 == 0 else 1.0
    return SamplingParams(
        temperature=heat, seed=kind, max_tokens=1 + kind * 7 % 40, ignore_eos=kind % 5 > 0
    )


def solo(model: Model) -> list[list[int]]:
    """Each kind alone, in one piece, without a cache."""
    config = EngineConfig(max_num_batched_tokens=256, max_model_len=256)
    answers = []
    for kind in range(KINDS):
        engine = Engine(model, config)
        answers.append(
            [t for out in engine.stream(prompt(kind), params(kind)) for t in out.token_ids]
        )
    return answers


class Soaked:
    """One engine under fire, and what it owes."""

    def __init__(self, model: Model, answers: list[list[int]], rng: Random, overlap: bool) -> None:
        self.engine = Engine(model, CONFIG, async_scheduling=overlap)
        self.answers, self.rng = answers, rng
        self.live: dict[str, tuple[int, list[int]]] = {}
        self.counts: Counter[str] = Counter()
        self._added = 0

    def turn(self) -> None:
        """Something comes, something goes, one step."""
        roll = self.rng.random()
        if roll < 0.02:
            self._add(self.rng.randrange(10, 60))
        elif roll < 0.30:
            self._add(1)
        elif roll < 0.36 and self.live:
            self._abort(self.rng.choice(list(self.live)))
        elif roll < 0.362:
            for name in list(self.live):
                self._abort(name)
            self._idle()
        self._step()

    def _add(self, count: int) -> None:
        for _ in range(min(count, MOST_LIVE - len(self.live))):
            kind, self._added = self.rng.randrange(KINDS), self._added + 1
            name = self.engine.add(prompt(kind), params(kind), request_id=f"r{self._added}")
            self.live[name] = (kind, [])
            self.counts["added"] += 1

    def _abort(self, name: str) -> None:
        kind, seen = self.live.pop(name)
        assert self.engine.abort(name)
        assert seen == self.answers[kind][: len(seen)], f"{name}: not the beginning of its answer"
        self.counts["aborted"] += 1

    def _step(self) -> None:
        for output in self.engine.step():
            kind, seen = self.live[output.request_id]
            seen += output.token_ids
            self.counts["tokens"] += len(output.token_ids)
            if output.finish_reason:
                del self.live[output.request_id]
                assert seen == self.answers[kind], f"{output.request_id}: not its solo answer"
                record = self.engine.trace.requests[output.request_id]
                self.counts["preempted"] += len(record.preemptions)
                self.counts["finished"] += 1
        self.engine.scheduler.check_integrity()
        self.counts["steps"] += 1
        if self.counts["steps"] % KEEP == 0:
            self._trim()

    def _idle(self) -> None:
        """Nothing left alive: every block is free again."""
        while self.engine.has_work:
            self.engine.step()
        assert not self.live
        assert self.engine.scheduler.num_blocks_used == 0, "blocks were not given back"
        self.counts["idle"] += 1

    def _trim(self) -> None:
        trace = self.engine.trace
        del trace.steps[:-KEEP]
        ended = [r.request_id for r in trace.requests.values() if r.outcome != "in_flight"]
        for name in ended[:-KEEP]:
            del trace.requests[name]

    def drain(self) -> None:
        """Let everything finish."""
        while self.live:
            self._step()
        self._idle()


def soak(seconds: float, seed: int = 0) -> dict[str, Any]:
    """Figures of a soak of `seconds`; AssertionError or RuntimeError at the first broken law."""
    torch.set_num_threads(1)
    model = load_model("tiny", dtype=torch.float64)
    answers = solo(model)
    rng, process = Random(seed), psutil.Process()
    both = [Soaked(model, answers, rng, overlap) for overlap in (False, True)]
    start, sizes, due = time.monotonic(), [], 0.25 * seconds
    while (now := time.monotonic() - start) < seconds:
        if both[0].counts["steps"] >= WARM_STEPS and now >= due:
            sizes.append(process.memory_info().rss)
            due = now + seconds / SAMPLES  # one a step would be memory that grows
        for one in both:
            one.turn()
    for one in both:
        one.drain()
    if len(sizes) < 20:
        raise ValueError(f"{seconds:g} s are too few here: {WARM_STEPS} steps only warm it up")
    counts = both[0].counts + both[1].counts
    return {
        "seconds": round(time.monotonic() - start, 1),
        **{name: counts[name] for name in sorted(counts)},
        **memory(sizes),
    }


if __name__ == "__main__":
    sys.exit(main(soak, sys.argv[1:]))

"""Random small workloads: crowded pools, short budgets, shared prefixes, aborts at any time.

python -m tests.sched.workloads 100000        the soak test, on all cores
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from random import Random
from time import monotonic

from llmlab.config import EngineConfig
from llmlab.sched import BaseScheduler, Chunked, Continuous, Request, SamplingParams, Static
from tests.sched.lab import VOCAB, Lab

SCHEDULERS: list[Callable[..., BaseScheduler]] = [
    Chunked,
    Chunked,
    partial(Chunked, order="admission"),
    Continuous,
    Static,
]


def random_config(rng: Random) -> EngineConfig:
    """A pool that is often too small for all, a budget that is often too short."""
    block_size = rng.choice((1, 2, 3, 4, 7))
    return EngineConfig(
        max_num_batched_tokens=rng.choice((1, 2, 3, 5, 8, 13, 24, 40)),
        max_num_seqs=rng.choice((1, 2, 3, 4, 8, 8)),
        block_size=block_size,
        num_blocks=-(-rng.randint(4, 36) // block_size),
        max_model_len=rng.choice((16, 30, 60)),
        long_prefill_token_threshold=rng.choice((0, 0, 1, 3, 6)),
        watermark=rng.choice((0.0, 0.0, 0.1, 0.3)),
        enable_prefix_caching=rng.random() < 0.5,
        policy="priority" if rng.random() < 0.2 else "fcfs",
    )


def random_request(rng: Random, name: str, stems: list[list[int]]) -> Request:
    """Often the beginning of another one's prompt, sometimes with an end in the middle."""
    stem = rng.choice(stems)
    prompt = stem[: rng.randint((len(stem) + 1) // 2, len(stem))] + [
        rng.randrange(VOCAB) for _ in range(rng.choice((0, 0, 1, 5)))
    ]
    max_tokens = rng.choice((None, 1, 2, 3, 5, 9, 14))
    stops = tuple(rng.sample(range(VOCAB), 12)) if rng.random() < 0.3 else ()
    params = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=rng.randint(0, min(2, max_tokens or 2)),
        stop_token_ids=stops,
        ignore_eos=rng.random() < 0.5,
    )
    return Request(
        name, prompt, params, priority=rng.randint(0, 3), eos_token_id=rng.choice((None, 5))
    )


def run_workload(seed: int) -> Lab:
    """One workload from one number, to the end; every law is checked at every step."""
    rng = Random(seed)
    bench = Lab(rng.choice(SCHEDULERS)(random_config(rng), vocab_size=VOCAB))
    stems = [[rng.randrange(VOCAB) for _ in range(rng.randint(1, 18))] for _ in range(2)]
    to_come = [random_request(rng, f"r{i}", stems) for i in range(rng.randint(1, 10))]
    aborts = rng.random() < 0.4
    while to_come or bench.scheduler.has_work:
        while to_come and rng.random() < 0.6:
            try:
                bench.add(to_come.pop())
            except ValueError:
                continue  # refused at the door: it could never run
        if aborts and rng.random() < 0.15 and bench.requests:
            bench.abort(rng.choice(bench.requests).request_id)
        if not bench.scheduler.has_work:
            continue
        victim = rng.choice(bench.requests).request_id if aborts and rng.random() < 0.1 else None
        bench.step(None if victim is None else lambda _, v=victim: bench.abort(v))
        if not to_come and bench.scheduler.has_work:
            bench.run()
    bench.check_idle()
    return bench


def run_block(seeds: range) -> list[str]:
    """What went wrong, one line a seed."""
    wrong = []
    for seed in seeds:
        try:
            run_workload(seed)
        except Exception as error:
            wrong.append(f"seed {seed}: {type(error).__name__}: {error}")
    return wrong


def main(argv: list[str]) -> int:
    count = int(argv[0]) if argv else 100_000
    start, size, done, failures = monotonic(), 500, 0, 0
    blocks = [range(first, min(first + size, count)) for first in range(0, count, size)]
    with ProcessPoolExecutor() as pool:
        for block, wrong in zip(blocks, pool.map(run_block, blocks), strict=True):
            done, failures = done + len(block), failures + len(wrong)
            for line in wrong:
                print(f"\n{line}")
            print(f"\r{done} of {count} workloads, {failures} failed", end="", flush=True)
    print(f"\n{count} random workloads in {monotonic() - start:.0f} s, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

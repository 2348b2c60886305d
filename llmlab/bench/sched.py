"""`llmlab bench sched`: what the scheduler itself costs, without a model.

Two figures, each the median of repeated runs on one core:
  planned_tokens_per_s   tokens planned and committed per second with 256 running decodes
  plan_us_at_waiting     microseconds that one request's life costs (added, planned, committed,
                         finished) while so many others wait
"""

from __future__ import annotations

import gc
import platform
import statistics
from time import perf_counter
from typing import Any

from llmlab.bench.command import at_least_one, command, deliver
from llmlab.config import EngineConfig
from llmlab.sched import Chunked, Request, SamplingParams

RUNNING = 256
WAITING = (100, 1_000, 10_000, 100_000)
PROMPT = list(range(100, 132))


def decode_tokens_per_s(steps: int, prefix_caching: bool = False) -> float:
    """Steady decoding: 256 requests of different lengths, so blocks fill at different steps."""
    config = EngineConfig(
        max_num_batched_tokens=8192,
        max_num_seqs=RUNNING,
        num_blocks=RUNNING * (steps // EngineConfig.block_size + 8),
        max_model_len=steps + 64,
        enable_prefix_caching=prefix_caching,
    )
    scheduler = Chunked(config)
    for i in range(RUNNING):
        params = SamplingParams(max_tokens=steps + 8, ignore_eos=True)
        scheduler.add(Request(f"r{i}", [i, *PROMPT[: i % 31]], params))
    tokens = [7] * RUNNING
    scheduler.commit(scheduler.plan(), tokens)
    planned, start = 0, perf_counter()
    for _ in range(steps):
        plan = scheduler.plan()
        scheduler.commit(plan, tokens)
        planned += len(plan.scheduled)
    return planned / (perf_counter() - start)


def us_per_request(waiting: int, requests: int) -> float:
    """Each step one request ends, the head of the queue begins, and a new one is added."""
    config = EngineConfig(max_num_batched_tokens=8192, max_num_seqs=RUNNING, num_blocks=8192)
    scheduler = Chunked(config)
    params = SamplingParams(max_tokens=1, ignore_eos=True)
    for i in range(waiting):
        scheduler.add(Request(f"w{i}", PROMPT, params))
    scheduler.config = config.with_(max_num_batched_tokens=len(PROMPT))  # one prompt a step
    # Making the requests is the caller's; the garbage collector would look through all that wait.
    fresh = [Request(f"n{i}", PROMPT, params) for i in range(requests)]
    gc.collect()
    gc.disable()
    try:
        start = perf_counter()
        for request in fresh:
            scheduler.add(request)
            plan = scheduler.plan()
            ended = scheduler.commit(plan, [7])
            if len(plan.scheduled) != 1 or len(ended) != 1:
                raise RuntimeError("expected one request to begin and end in each step")
        return (perf_counter() - start) / requests * 1e6
    finally:
        gc.enable()


def measure(repeats: int, steps: int, requests: int) -> dict[str, Any]:
    """All figures: medians, and the single runs they come from."""
    tokens = [decode_tokens_per_s(steps) for _ in range(repeats)]
    cached = [decode_tokens_per_s(steps, prefix_caching=True) for _ in range(repeats)]
    # The sizes take turns, so that a slow moment of the machine does not hit one of them alone.
    rounds = [{n: us_per_request(n, requests) for n in WAITING} for _ in range(repeats)]
    waiting = {str(n): [one[n] for one in rounds] for n in WAITING}
    return {
        "planned_tokens_per_s": statistics.median(tokens),
        "plan_us_at_waiting": {n: statistics.median(runs) for n, runs in waiting.items()},
        "planned_tokens_per_s_with_prefix_caching": statistics.median(cached),
        "runs": {
            "planned_tokens_per_s": tokens,
            "planned_tokens_per_s_with_prefix_caching": cached,
            "plan_us_at_waiting": waiting,
        },
        "running_decodes": RUNNING,
        "repeats": repeats,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def table(result: dict[str, Any]) -> str:
    """The figures for people, at most 80 columns; spread is lowest to highest run."""

    def line(name: str, median: float, runs: list[float], unit: str) -> str:
        form = ",.0f" if median >= 1000 else ".1f"
        ends = f"{min(runs):{form}} .. {max(runs):{form}}"
        return f"{name:<36} {median:>10{form}} {unit:<8} {ends}"

    runs = result["runs"]
    rows = [f"{'':<36} {'median':>10} {'':<8} lowest .. highest of {result['repeats']}"]
    for key, name in (
        ("planned_tokens_per_s", f"planned and committed, {RUNNING} decodes"),
        ("planned_tokens_per_s_with_prefix_caching", "the same with prefix caching"),
    ):
        rows.append(line(name, result[key], runs[key], "tokens/s"))
    for n, median in result["plan_us_at_waiting"].items():
        name = f"one request while {int(n):,} wait"
        rows.append(line(name, median, runs["plan_us_at_waiting"][n], "us"))
    return "\n".join(rows)


def main(argv: list[str]) -> int:
    """Print the figures; 0, or 2 for input that cannot be used."""
    parser = command("sched", __doc__, "example: llmlab bench sched --json")
    add = parser.add_argument
    add("--repeats", type=at_least_one, default=7, help="runs per figure (default 7)")
    add("--steps", type=at_least_one, default=1000, help="decode steps per run (default 1000)")
    add("--requests", type=at_least_one, default=3000, help="requests per run (default 3000)")
    args = parser.parse_args(argv)
    return deliver(args, measure(args.repeats, args.steps, args.requests), table)

"""How fast the simulator is: simulated tokens per second, and the time of one slider move.

    llmlab bench sim            a table
    llmlab bench sim --json     {"simulated_tokens_per_s": ..., ...}

One core, no torch. Load 1: 64 requests decode side by side, every step and token recorded. Load
2: 200 requests, short chats and long documents in equal shares, what a panel simulates again
each time a slider moves.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from llmlab.bench.command import at_least_one, command, deliver
from llmlab.sim.load import Arrival, ClosedLoop, poisson_arrivals
from llmlab.sim.simulate import simulate
from llmlab.trace import Trace

CHAT_AND_DOCUMENT = [("chat", 256, 128), ("document", 8192, 64)]


def decode_load() -> ClosedLoop:
    """64 users, four answers each of 1,024 tokens after a prompt of 256."""
    return ClosedLoop(64, 256, 256, 1024)


def slider_load() -> list[Arrival]:
    """200 requests at 4 a second, half of them documents."""
    return poisson_arrivals(4.0, 200, CHAT_AND_DOCUMENT, seed=0)


def timed(run: Callable[[], Trace], repeats: int) -> tuple[list[float], Trace]:
    """Seconds of each of `repeats` runs, and the last trace; one run goes before, unmeasured."""
    trace = run()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        trace = run()
        seconds.append(time.perf_counter() - start)
    return seconds, trace


def measure(repeats: int = 5) -> dict[str, Any]:
    """Both loads on a simulated H100 with Llama-3.1-8B."""
    place: dict[str, Any] = {"model": "llama-3.1-8b", "hardware": "h100-sxm"}
    seconds, trace = timed(lambda: simulate(decode_load(), **place), repeats)
    tokens = sum(len(record.events) for record in trace.requests.values())
    slider, slid = timed(lambda: simulate(slider_load(), **place), repeats)
    return {
        "simulated_tokens_per_s": tokens / median(seconds),
        "decode_tokens": tokens,
        "decode_steps": len(trace.steps),
        "decode_seconds": seconds,
        "slider_trace_ms": median(slider) * 1e3,
        "slider_requests": len(slid.requests),
        "slider_steps": len(slid.steps),
        "slider_ms": [s * 1e3 for s in slider],
        "python": platform.python_version(),
    }


def table(figures: dict[str, Any]) -> str:
    """The figures for people; spread is (largest - smallest) / median."""
    spread = (max(figures["slider_ms"]) - min(figures["slider_ms"])) / figures["slider_trace_ms"]
    return (
        f"decode, 64 wide     {figures['simulated_tokens_per_s']:>12,.0f} simulated tokens/s\n"
        f"slider, 200 requests {figures['slider_trace_ms']:>11.1f} ms (spread {spread:.0%})"
    )


def main(argv: list[str]) -> int:
    """Print the figures; 0, or 2 for input that cannot be used."""
    parser = command("sim", __doc__)
    parser.add_argument(
        "--repeats", type=at_least_one, default=5, help="measured runs of each load"
    )
    args = parser.parse_args(argv)
    return deliver(args, measure(args.repeats), table)

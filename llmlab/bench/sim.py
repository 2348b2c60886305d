"""How fast the simulator is: simulated tokens per second, and the time of one slider move.

    llmlab bench sim            a table
    llmlab bench sim --json     {"simulated_tokens_per_s": ..., "slider_trace_ms": ..., ...}

One core, no torch. Load 1: 64 requests decode side by side, every step and token recorded. Load
2: 200 requests, short chats and long documents in equal shares, what a panel simulates again
each time a slider moves.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

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
        "python": sys.version.split()[0],
    }


def main(argv: list[str]) -> int:
    """Print the figures; 0."""
    parser = argparse.ArgumentParser(prog="llmlab bench sim", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--out", help="also write the JSON to this file")
    parser.add_argument("--repeats", type=int, default=5, help="measured runs of each load")
    args = parser.parse_args(argv)
    if args.repeats < 1:
        parser.error(f"--repeats {args.repeats}: must be at least 1")
    figures = measure(args.repeats)
    text = json.dumps(figures, indent=1)
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    if args.json:
        print(text)
        return 0
    spread = (max(figures["slider_ms"]) - min(figures["slider_ms"])) / figures["slider_trace_ms"]
    print(f"decode, 64 wide     {figures['simulated_tokens_per_s']:>12,.0f} simulated tokens/s")
    print(f"slider, 200 requests {figures['slider_trace_ms']:>11.1f} ms (spread {spread:.0%})")
    return 0

"""Times of calls on a card: captured, replayed in turn with their rivals, inputs rotated.

    round 1   ours  peer      round 2   ours  peer      ...      medians over the rounds

A call is timed as a CUDA graph of k calls on k different inputs, so that neither launch overhead
nor an L2 that still holds the last input flatters it. On the CPU (tests) the clock is the host's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

Call = Callable[[], Any]
L2_BYTES = 60 * 2**20  # H200's is 50 MB; inputs rotate over four times this


@dataclass
class Bench:
    """What every section gets: where to run, how long it may take, and the card's ceilings.

    ceilings: bytes/s "copy" and "read", FLOP/s "gemm", seconds "node". Empty until measured.
    """

    device: torch.device
    tiny: bool
    deadline: float
    ceilings: dict[str, float] = field(default_factory=dict)
    rounds: int = 50

    @property
    def on_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.on_cuda else torch.float32

    def is_over(self) -> bool:
        """True when this section's time is up: it then starts no new cell."""
        return time.monotonic() >= self.deadline

    def randn(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Normal random numbers on the device; zeros would draw less power and run faster."""
        return torch.randn(shape, dtype=dtype or self.dtype, device=self.device)

    def free_bytes(self) -> int:
        """Memory that a cell may take now."""
        if not self.on_cuda:
            return 2**28
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(self.device)[0])

    def share(self, ceiling: str, rate: float) -> float | None:
        """A rate as a share of a measured ceiling; None if that was not measured."""
        limit = self.ceilings.get(ceiling)
        return rate / limit if limit else None


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: median, 10th and 90th percentile over n rounds."""

    median: float
    low: float
    high: float
    n: int
    graph: bool

    def as_row(self) -> dict[str, Any]:
        """As the columns of a result, in microseconds."""
        return {
            "median_us": self.median * 1e6,
            "p10_us": self.low * 1e6,
            "p90_us": self.high * 1e6,
            "rounds": self.n,
            "graph": self.graph,
        }


def rotations(bytes_per_input: int, most: int = 32) -> int:
    """How many different inputs make the L2 useless."""
    return max(1, min(most, -(-4 * L2_BYTES // max(1, bytes_per_input))))


def measure(bench: Bench, rivals: Mapping[str, Sequence[Call]]) -> dict[str, Timing]:
    """Time each rival's calls (one per rotated input), taking turns; seconds of one call."""
    runs = {name: _prepared(bench, calls) for name, calls in rivals.items()}
    first = max(_seconds(bench, run) for run, _ in runs.values())
    most = bench.rounds if bench.on_cuda else 2
    rounds = int(max(min(10, most), min(most, 0.4 / max(first, 1e-9) / len(runs))))
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, (run, _) in runs.items():
            samples[name].append(_seconds(bench, run) / len(rivals[name]))
    return {name: summary(samples[name], graph) for name, (_, graph) in runs.items()}


def summary(samples: Sequence[float], graph: bool = False) -> Timing:
    """Median and spread of samples in seconds."""
    ordered = sorted(samples)
    at = (len(ordered) - 1) / 10
    return Timing(
        statistics.median(ordered), ordered[int(at)], ordered[-1 - int(at)], len(ordered), graph
    )


def _prepared(bench: Bench, calls: Sequence[Call]) -> tuple[Call, bool]:
    """All calls as one: a replayed graph if they can be captured, a loop if not."""

    def loop() -> None:
        for call in calls:
            call()

    loop()  # compiles
    if not bench.on_cuda:
        return loop, False
    torch.cuda.synchronize()
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loop()
    except RuntimeError:
        torch.cuda.synchronize()
        return loop, False
    graph.replay()
    return graph.replay, True


def _seconds(bench: Bench, run: Call) -> float:
    if not bench.on_cuda:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    event: Any = torch.cuda.Event
    begin, end = event(enable_timing=True), event(enable_timing=True)
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def relative_error(result: torch.Tensor, expected: torch.Tensor) -> float:
    """||result - expected|| / ||expected||, infinite if anything is not finite."""
    if not bool(torch.isfinite(result).all()):
        return float("inf")
    difference = (result.double() - expected.double()).norm()
    return float(difference / expected.double().norm().clamp(min=1e-30))


def within(error: float, dtype: torch.dtype) -> bool:
    """Is the error what rounding to this type explains? bfloat16 rounds at 2^-9."""
    return error <= {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 8e-3}[dtype]

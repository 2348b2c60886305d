"""The simulator meets results that are known exactly, with nothing fitted."""

from __future__ import annotations

import heapq

import numpy as np
import pytest

from llmlab.config import EngineConfig
from llmlab.perf.cost import StepShape
from llmlab.sched.continuous import Continuous
from llmlab.sched.static import Static
from llmlab.sim.load import Arrival
from llmlab.sim.simulator import Simulator
from llmlab.sim.step_time import FixedStepTime

SERVICE = DECODE = 1_000_000  # ns


def poisson(rho: float, requests: int, seed: int) -> np.ndarray:
    """Arrivals [requests] in ns at rho of what one server does that takes SERVICE ns a request."""
    stamps = np.cumsum(np.random.default_rng(seed).exponential(size=requests))
    stamps *= requests * SERVICE / rho / stamps[-1]  # the realized rate is the nominal one
    return stamps.astype(np.int64)


def simulated_ttfts(stamps: np.ndarray) -> list[int]:
    config = EngineConfig(max_num_seqs=1, num_blocks=4, max_model_len=16)
    simulator = Simulator(Continuous(config), FixedStepTime(SERVICE), record_steps=False)
    trace = simulator.run(Arrival(int(t), 8, 1) for t in stamps)
    return [record.events[0].t - record.t_send for record in trace.requests.values()]


def lindley_ttfts(stamps: np.ndarray) -> np.ndarray:
    """Lindley's recursion, end[n] = max(stamp[n], end[n - 1]) + SERVICE, without a loop; [n] ns."""
    turns = SERVICE * np.arange(len(stamps))
    return np.maximum.accumulate(stamps - turns) + turns + SERVICE - stamps


def md1(rho: float) -> float:
    """Mean time to first token over service time in an M/D/1 queue (Pollaczek-Khinchine)."""
    return 1 + rho / (2 * (1 - rho))


@pytest.mark.parametrize(
    ("rho", "published"), [(0.3, 1.21), (0.5, 1.5), (0.7, 2.17), (0.8, 3.0), (0.9, 5.5)]
)
def test_one_server_queue_waits_as_the_formula_says(rho, published):
    """A busy queue's mean settles slowly: the recursion meets it over two million requests, and the
    simulator meets the recursion to the nanosecond."""
    assert md1(rho) == pytest.approx(published, abs=0.005)
    stamps = poisson(rho, 2_000_000, seed=1)
    exact = lindley_ttfts(stamps)
    assert exact.mean() / SERVICE == pytest.approx(md1(rho), rel=0.01)
    assert simulated_ttfts(stamps[:4_000]) == exact[:4_000].tolist()


class DecodeOnly(FixedStepTime):
    """Steps that compute prompts take no time to speak of: the formula knows decoding alone."""

    def step_ns(self, shape: StepShape) -> int:
        return 1 if shape.num_tokens > shape.num_requests else self.nanoseconds


def decode_only(scheduler: type, slots: int, lengths: np.ndarray) -> int:
    """Time that a scheduler with `slots` places needs to decode answers of these lengths."""
    config = EngineConfig(
        max_num_batched_tokens=3200, max_num_seqs=slots, num_blocks=200 * slots, max_model_len=3200
    )
    clock = DecodeOnly(DECODE)
    simulator = Simulator(scheduler(config), clock, record_steps=False)
    # The first token comes from the prompt's own step, so one more than is decoded.
    trace = simulator.run(Arrival(0, 2, int(n) + 1) for n in lengths)
    return max(record.t_end for record in trace.requests.values())


def exponential(count: int, mean: float, seed: int) -> np.ndarray:
    """Lengths [count] in tokens, 1 or more."""
    lengths = np.random.default_rng(seed).exponential(mean, size=count)
    return np.maximum(1, np.rint(lengths)).astype(np.int64)


def static_steps(slots: int, lengths: np.ndarray) -> int:
    """A batch [slots] lasts as long as its longest member, and the next one waits for it."""
    return int(lengths.reshape(-1, slots).max(axis=1).sum())


def continuous_steps(slots: int, lengths: np.ndarray) -> int:
    """Each request takes the place that is free first."""
    free = [0] * slots
    for length in lengths.tolist():
        heapq.heapreplace(free, free[0] + length)
    return max(free)


def harmonic(n: int) -> float:
    return sum(1 / k for k in range(1, n + 1))


@pytest.mark.parametrize(
    ("slots", "batches", "published"),
    [(4, 1000, 2.08), (8, 2000, 2.72), (16, 1000, 3.38), (32, 800, 4.06), (64, 400, 4.74)],
)
def test_static_batches_of_exponential_lengths_lose_the_harmonic_number(slots, batches, published):
    """Steps counted by hand meet the formula over many batches, and schedulers the hand's count.

    All requests are there at the start.
    """
    assert harmonic(slots) == pytest.approx(published, abs=0.005)
    lengths = exponential(slots * batches, 40.0, seed=1)
    lost = static_steps(slots, lengths) / continuous_steps(slots, lengths)
    assert lost == pytest.approx(harmonic(slots), rel=0.02)
    some = lengths[: slots * 25]
    for scheduler, steps in ((Static, static_steps), (Continuous, continuous_steps)):
        assert decode_only(scheduler, slots, some) // DECODE == steps(slots, some)


@pytest.mark.parametrize("slots", [4, 32])
def test_at_fixed_lengths_static_batches_lose_nothing(slots):
    lengths = np.full(slots * 20, 25)
    static, continuous = (decode_only(s, slots, lengths) for s in (Static, Continuous))
    assert static == pytest.approx(20 * 25 * DECODE, rel=1e-3)
    assert continuous == pytest.approx(static, rel=1e-3)

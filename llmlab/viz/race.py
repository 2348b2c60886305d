"""The same requests under several policies: run for real, simulated, or counted in equal steps.

All requests are there at the start, so what differs at the end is only how the slots were used.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from llmlab.config import require, require_int
from llmlab.sched.continuous import Continuous
from llmlab.sched.plan import Scheduler
from llmlab.sched.static import Static
from llmlab.trace import Trace
from llmlab.viz.drive import drive, roomy

if TYPE_CHECKING:
    from llmlab.engine.model import Model
    from llmlab.perf.cost import StepShape

Policy = Callable[..., Scheduler]
Watch = Callable[[str, Trace], None]

KINDS = ("fixed", "exponential", "one long in each batch")
POLICIES: dict[str, Policy] = {"static": Static, "continuous": Continuous}
LONG = 8  # how many times as long the one long answer is


@dataclass(frozen=True)
class Lap:
    """One policy's run over the requests, in whatever state it is."""

    policy: str
    slots: int
    trace: Trace

    @property
    def ms(self) -> float:
        """From the first send to the end of the latest step."""
        steps = self.trace.steps
        return max(0, steps[-1].t_end - self.start) / 1e6 if steps else 0.0

    @property
    def start(self) -> int:
        sent = [r.t_send for r in self.trace.requests.values() if r.t_send is not None]
        return min(sent, default=0)

    @property
    def tokens(self) -> int:
        return sum(len(r.events) for r in self.trace.requests.values())

    @property
    def busy(self) -> float:
        """Share of the slots that computed anything, over all steps; 0 before the first."""
        used = sum(len(step.scheduled) for step in self.trace.steps)
        return used / max(1, self.slots * len(self.trace.steps))

    @property
    def median_e2e(self) -> float | None:
        """Median ms from send to last token over the requests that have ended."""
        ended = [
            (r.events[-1].t - r.t_send) / 1e6
            for r in self.trace.requests.values()
            if r.outcome == "completed" and r.events and r.t_send is not None
        ]
        return statistics.median(ended) if ended else None


def draw_lengths(kind: str, requests: int, mean: int, slots: int, seed: int = 0) -> list[int]:
    """Output tokens of each request: all `mean`, exponential about it, or one long per batch.

    "one long in each batch": every `slots`-th request writes LONG times what the others do, and
    the mean over a batch is about `mean`.
    """
    import numpy as np

    require(kind in KINDS, "race", "kind", kind, f"one of {', '.join(KINDS)}")
    for name, value in (("requests", requests), ("mean", mean), ("slots", slots)):
        require_int("race", name, value, 1)
    if kind == "fixed":
        return [mean] * requests
    if kind == "exponential":
        drawn = np.random.default_rng(seed).exponential(mean, size=requests)
        return [max(1, round(float(n))) for n in drawn]
    short = max(1, round(mean * slots / (slots - 1 + LONG)))
    return [LONG * short if i % slots == 0 else short for i in range(requests)]


def race_simulated(
    lengths: Sequence[int],
    slots: int,
    policies: dict[str, Policy] | None = None,
    *,
    prompt_tokens: int = 16,
    model: str = "llama-3.1-8b",
    hardware: str = "h100-sxm",
) -> list[Lap]:
    """Each policy on a simulated device; the traces say so.

    Turning text into tokens takes no time here, so that all requests are there at the start.
    """
    from llmlab.sim.load import Arrival
    from llmlab.sim.simulate import simulate
    from llmlab.sim.step_time import default_constants

    constants = replace(default_constants(hardware), preprocess=0.0, preprocess_per_token=0.0)
    config = roomy(slots, prompt_tokens, max(lengths))
    load = [Arrival(0, prompt_tokens, n) for n in lengths]
    chosen = policies or POLICIES
    return [
        Lap(name, slots, simulate(load, model, hardware, config, policy, constants=constants))
        for name, policy in chosen.items()
    ]


def race_real(
    model: Model,
    lengths: Sequence[int],
    slots: int,
    policies: dict[str, Policy] | None = None,
    *,
    prompt_tokens: int = 16,
    stop: threading.Event | None = None,
    watch: Watch | None = None,
) -> list[Lap]:
    """Each policy on the real engine, one after the other; answers have the lengths given.

    watch(policy, trace) is called as a policy begins, with the trace that will fill.
    stop: set it to end within one step; what ran so far is returned.
    """
    from llmlab.engine import Engine

    laps = []
    for name, policy in (policies or POLICIES).items():
        if stop is not None and stop.is_set():
            break
        engine = Engine(model, roomy(slots, prompt_tokens, max(lengths)), policy)
        if watch is not None:
            watch(name, engine.trace)
        drive(engine, lengths, prompt_tokens, stop)
        laps.append(Lap(name, slots, engine.trace))
    return laps


def decode_steps(policy: Policy, lengths: Iterable[int], slots: int) -> float:
    """How many equal decode steps a policy needs, with prompts that cost nothing.

    The clean case of the formula: every step lasts the same, whatever is in it.
    """
    from llmlab.sim.load import Arrival
    from llmlab.sim.simulator import Simulator
    from llmlab.sim.step_time import FixedStepTime

    unit = 1_000_000

    class DecodeOnly(FixedStepTime):
        def step_ns(self, shape: StepShape) -> int:
            return 1 if shape.num_tokens > shape.num_requests else self.nanoseconds

    # A request's first token comes from its prompt's own step, so one more than is decoded.
    load = [Arrival(0, 2, int(n) + 1) for n in lengths]
    config = roomy(slots, 2, max(a.output_tokens for a in load))
    trace = Simulator(policy(config), DecodeOnly(unit), record_steps=False).run(load)
    return max(r.t_end or 0 for r in trace.requests.values()) / unit


def speed_up(kind: str, slots: int, batches: int, mean: int = 40, seed: int = 1) -> float:
    """Static over continuous batching, in equal decode steps, for `batches` full batches."""
    lengths = draw_lengths(kind, slots * batches, mean, slots, seed)
    return decode_steps(Static, lengths, slots) / decode_steps(Continuous, lengths, slots)


def harmonic(n: int) -> float:
    """1 + 1/2 + ... + 1/n: the expected maximum of n exponential draws over their mean."""
    require_int("harmonic", "n", n, 1)
    return sum(1 / k for k in range(1, n + 1))

"""Real engine steps as points for the roofline: decode by batch, prefill by prompt length.

Each point is the median of several steps of one shape, with its spread. The steps run on an
engine of their own, so that nothing else is in them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmlab.config import require_int
from llmlab.perf.cost import CostModel, StepShape, trace_shapes
from llmlab.perf.hardware import Hardware
from llmlab.perf.roofline import Utilization, utilization
from llmlab.viz.drive import drive, roomy
from llmlab.viz.figures.roofline import Point, roofline
from llmlab.viz.live import Progress
from llmlab.viz.show import Shown, live_figure, shown_table

if TYPE_CHECKING:
    from llmlab.trace import StepRecord


@dataclass(frozen=True)
class Measured:
    """Steps of one shape: the median duration, the fastest and slowest, and what was achieved."""

    label: str
    phase: str
    tokens: int
    ms: float
    fastest_ms: float
    slowest_ms: float
    steps: int
    achieved: Utilization

    @property
    def point(self) -> Point:
        return Point.of(self.label, self.phase, self.achieved)


def decode_walk(
    model: Any,
    ceilings: Hardware,
    batches: Iterable[int],
    *,
    context: int = 64,
    steps: int = 8,
    progress: Progress | None = None,
) -> list[Measured]:
    """One point per batch size: decode steps in which that many requests run.

    context: prompt tokens of each; steps: how many count, >= 1 (one more runs before them).
    """
    require_int("decode_walk", "steps", steps, 1)
    sizes = list(batches)
    found = []
    for number, batch in enumerate(sizes):
        _say(progress, number, len(sizes), f"decode, batch {batch}")
        timed = _steps(model, batch, context, steps + 2, _decodes_of(batch))
        found.append(_measured(f"batch {batch}", "decode", batch, timed[1:], model, ceilings))
    _say(progress, len(sizes), len(sizes), "decode")
    return found


def _decodes_of(batch: int) -> Callable[[StepRecord], bool]:
    """Steps that hold one decode token for each of `batch` requests and nothing else."""
    return lambda step: step.decode_tokens == batch == len(step.scheduled)


def prefill_walk(
    model: Any,
    ceilings: Hardware,
    prompts: Iterable[int],
    *,
    repeats: int = 3,
    progress: Progress | None = None,
) -> list[Measured]:
    """One point per prompt length: the step that computes the whole prompt, `repeats` times."""
    require_int("prefill_walk", "repeats", repeats, 1)
    sizes = list(prompts)
    found = []
    for number, prompt in enumerate(sizes):
        _say(progress, number, len(sizes), f"prefill, {prompt} tokens")
        timed = []
        for _ in range(repeats):
            timed += _steps(model, 1, prompt, 1, lambda s: s.prefill_tokens > 0)
        label = f"{prompt} tokens"
        found.append(_measured(label, "prefill", prompt, timed, model, ceilings))
    _say(progress, len(sizes), len(sizes), "prefill")
    return found


def _say(progress: Progress | None, done: int, total: int, what: str) -> None:
    if progress is not None:
        progress(done, total, what)


def _steps(
    model: Any, requests: int, prompt: int, output: int, keep: Callable[[StepRecord], bool]
) -> list[tuple[StepShape, float]]:
    """Run requests of (prompt, output) tokens together; (shape, seconds) of the kept steps."""
    from llmlab.engine import Engine

    engine = Engine(model, config=roomy(requests, prompt, output))
    drive(engine, [output] * requests, prompt)
    pairs = zip(trace_shapes(engine.trace), engine.trace.steps, strict=True)
    return [(shape, (s.t_end - s.t_start) / 1e9) for shape, s in pairs if keep(s)]


def _measured(
    label: str,
    phase: str,
    tokens: int,
    timed: list[tuple[StepShape, float]],
    model: Any,
    ceilings: Hardware,
) -> Measured:
    from llmlab.perf.calibrate import engine_precision

    seconds = [s for _, s in timed]
    typical = statistics.median(seconds)
    shape = min(timed, key=lambda pair: abs(pair[1] - typical))[0]
    cost = CostModel(model.config, engine_precision(model))
    achieved = utilization(shape, typical, cost, ceilings)
    return Measured(
        label,
        phase,
        tokens,
        typical * 1e3,
        min(seconds) * 1e3,
        max(seconds) * 1e3,
        len(seconds),
        achieved,
    )


WALK_HEAD = [
    "point",
    "phase",
    "median ms",
    "fastest to slowest (steps)",
    "FLOP/B",
    "compute",
    "bandwidth",
]


def walk_rows(points: Iterable[Measured]) -> list[list[str]]:
    """A table of the points: shares are of the measured ceilings."""
    return [
        [
            m.label,
            m.phase,
            f"{m.ms:.1f}",
            f"{m.fastest_ms:.1f} to {m.slowest_ms:.1f} ({m.steps})",
            f"{m.achieved.intensity:.1f}",
            f"{100 * m.achieved.compute_share:.0f} %",
            f"{100 * m.achieved.bandwidth_share:.0f} %",
        ]
        for m in points
    ]


def show_walk(points: list[Measured], ceilings: Hardware, dtype: str) -> Shown:
    """The points under the measured roof, with their table."""
    caption = f"Measured on {ceilings.title}; shares of its measured ceilings"
    figure = roofline(ceilings, dtype, [m.point for m in points], simulated=False)
    return shown_table(caption, WALK_HEAD, walk_rows(points), live_figure(figure))

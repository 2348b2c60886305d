"""Fit the constants of each device and engine to what was measured, and leave one out.

    python -m llmlab.sim.fit            rewrites data/step_time.yaml (minutes)

One set of constants serves all rows of a device and engine: nothing is fitted per row. The loss
is the sum of squared log errors, each over the size of error that would be acceptable, plus a
weak pull towards round defaults: with two rows and six constants something has to decide the
rest, and the pull is part of the record. No torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmlab.perf.cost import CostModel, StepShape
from llmlab.perf.hardware import Hardware
from llmlab.sim.published import Row, predict
from llmlab.sim.step_time import Constants, StepTime

# Acceptable error by metric, as a fraction: what a unit of loss is.
TOLERANCE = {"tpot_ms": 0.05, "output_rate": 0.05, "ttft_ms": 0.25}


@dataclass(frozen=True)
class Prior:
    """A default and how far (as a factor e^spread) a fit may wander for one unit of loss."""

    value: float
    spread: float


PRIORS = {
    "compute_efficiency": Prior(0.55, 0.3),
    "bandwidth_efficiency": Prior(0.8, 0.15),
    "step_overhead": Prior(1e-3, 1.0),
    "request_overhead": Prior(2e-5, 1.0),
    "expert_overhead": Prior(1e-5, 1.0),
    "preprocess": Prior(2e-3, 1.5),
    "network": Prior(3e-3, 1.5),
}


def constants_at(
    point: NDArray[np.float64], base: Constants, priors: Mapping[str, Prior] = PRIORS
) -> Constants:
    """Constants from a point in the space of log ratios to the defaults."""
    values = {}
    for (name, prior), log_ratio in zip(priors.items(), point, strict=True):
        value = prior.value * math.exp(float(log_ratio))
        values[name] = min(value, 0.98) if name.endswith("_efficiency") else value
    return Constants(**{**asdict(base), **values})


def loss(point: NDArray[np.float64], rows: Sequence[Row], base: Constants) -> float:
    """Sum of squared scaled log errors over `rows`, plus the pull towards the defaults."""
    constants = constants_at(point, base)
    total = 0.0
    for prior, log_ratio in zip(PRIORS.values(), point, strict=True):
        total += (float(log_ratio) / prior.spread) ** 2
    for row in rows:
        predicted = predict(row, constants)
        for metric, tolerance in TOLERANCE.items():
            if row.counts(metric):
                error = math.log(predicted[metric] / row.measured[metric])
                total += (error / tolerance) ** 2
    return total


def fit(
    rows: Sequence[Row],
    start: NDArray[np.float64] | None = None,
    base: Constants | None = None,
    evaluations: int = 250,
) -> tuple[Constants, NDArray[np.float64], float]:
    """Constants that serve `rows` best, where they are in log space, and the loss there."""
    known = base or Constants()
    begin = np.zeros(len(PRIORS)) if start is None else start
    point, value = nelder_mead(lambda p: loss(p, rows, known), begin, evaluations)
    return constants_at(point, known), point, value


Objective = Callable[[NDArray[np.float64]], float]


def nelder_mead(
    function: Objective, start: NDArray[np.float64], evaluations: int, size: float = 0.15
) -> tuple[NDArray[np.float64], float]:
    """Minimize by the simplex of Nelder and Mead (1965); deterministic, needs no gradient.

    Returns the best point and its value, after about `evaluations` calls or when all corners
    are equally good.
    """
    points = [start] + [start + size * axis for axis in np.eye(len(start))]
    corners = [(function(point), point) for point in points]
    calls = len(corners)
    while calls < evaluations:
        corners.sort(key=lambda corner: corner[0])
        (best, best_point), (worst, worst_point) = corners[0], corners[-1]
        if worst - best <= 1e-4 * (1 + abs(best)):
            break
        centre = np.mean([point for _, point in corners[:-1]], axis=0)
        away = centre - worst_point
        tried = [(function(centre + away), centre + away)]
        if tried[0][0] < best:
            tried.append((function(centre + 2 * away), centre + 2 * away))
        elif tried[0][0] >= corners[-2][0]:
            tried.append((function(centre - 0.5 * away), centre - 0.5 * away))
        calls += len(tried)
        found = min(tried, key=lambda corner: corner[0])
        if found[0] < worst:
            corners[-1] = found
        else:
            halfway = [best_point + 0.5 * (point - best_point) for _, point in corners[1:]]
            corners[1:] = [(function(point), point) for point in halfway]
            calls += len(halfway)
    best, best_point = min(corners, key=lambda corner: corner[0])
    return best_point, best


STEP_PRIORS = {
    "compute_efficiency": Prior(0.6, 0.5),
    "bandwidth_efficiency": Prior(0.7, 0.5),
    "attention_compute_efficiency": Prior(0.3, 1.0),
    "attention_bandwidth_efficiency": Prior(0.3, 1.0),
    "step_overhead": Prior(2e-3, 1.5),
    "request_overhead": Prior(1e-3, 1.5),
}


def fit_steps(
    steps: Sequence[tuple[StepShape, float]], cost: CostModel, hardware: Hardware
) -> tuple[Constants, float]:
    """Constants that predict measured steps, and the median absolute error they leave.

    steps: (shape, seconds). The loss is the sum of absolute log errors, so that a step that the
    operating system interrupted pulls no harder than any other. A local engine has neither
    network nor front end: both are zero.
    """
    if len(steps) < len(STEP_PRIORS):
        raise ValueError(f"steps: {len(steps)} measured, at least {len(STEP_PRIORS)} are needed")
    base = Constants(preprocess=0.0, network=0.0)

    def at(point: NDArray[np.float64]) -> Constants:
        return constants_at(point, base, STEP_PRIORS)

    def errors(point: NDArray[np.float64]) -> list[float]:
        predicted = StepTime(cost, hardware, at(point))
        return [abs(math.log(predicted.seconds(shape) / measured)) for shape, measured in steps]

    def total(point: NDArray[np.float64]) -> float:
        pull = zip(STEP_PRIORS.values(), point, strict=True)
        return sum(errors(point)) + sum((float(x) / p.spread) ** 2 for p, x in pull) / 10

    point = np.zeros(len(STEP_PRIORS))
    for size in (0.5, 0.3, 0.1):  # start anew from the best point: a simplex can stall
        point, _ = nelder_mead(total, point, 200, size)
    return at(point), float(np.expm1(np.median(errors(point))))


def rounded(constants: Constants) -> dict[str, float]:
    """Constants with four digits: what is written is what is used."""
    values = asdict(constants).items()
    return {name: float(f"{value:.4g}") for name, value in values if value is not None}


def fit_group(rows: Sequence[Row]) -> dict[str, Any]:
    """Entry of `data/step_time.yaml` for the rows of one device and engine."""
    whole, point, _ = fit(rows)
    without = {}
    if len(rows) > 1:
        for row in rows:
            others = [other for other in rows if other is not row]
            found, _, _ = fit(others, start=point, evaluations=120)
            without[row.key] = rounded(found)
    return {
        "fitted_on": sorted({row.set_id for row in rows}),
        "rows": len(rows),
        "values": rounded(whole),
        "leave_one_out": without,
    }


HEADER = """\
# Constants of the step-time model, one entry per device and engine. Written by
#   python -m llmlab.sim.fit
# from data/published.yaml; what each constant means: llmlab/sim/step_time.py. Times in seconds.
#
# values         fitted on all rows of the sets in fitted_on
# leave_one_out  fitted on all of them but the one named; used to predict that one
# default_for    devices that take these constants when none are named
# With fewer rows than constants the rest is decided by a weak pull towards the defaults of
# llmlab/sim/fit.py.
"""

DEFAULT_FOR = {
    "l4/vllm-0.23": ["l4", "t4", "a10g", "rtx-4090"],
    "a100-40gb/vllm-0.23": ["a100-40gb", "a100-80gb"],
    "h100-sxm/vllm-0.21": ["h100-sxm", "h100-pcie", "h200", "b200"],
}


def groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows that share constants: one device, one engine."""
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        if row.kind != "reference":
            grouped.setdefault(row.constants, []).append(row)
    return grouped


def main() -> int:
    """Fit every group and rewrite `data/step_time.yaml`; names as arguments fit only those."""
    import sys

    import yaml

    from llmlab.data import data_path
    from llmlab.sim.published import load_rows
    from llmlab.sim.step_time import constants_catalog

    path = data_path("step_time.yaml")
    entries = dict(constants_catalog(path).entries) if path.is_file() else {}
    grouped = groups(load_rows())
    for name in sys.argv[1:] or grouped:
        entries[name] = {"default_for": DEFAULT_FOR.get(name, []), **fit_group(grouped[name])}
        print(name, entries[name]["values"], flush=True)
        text = yaml.safe_dump({"constants": entries}, sort_keys=False)
        path.write_text(HEADER + text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

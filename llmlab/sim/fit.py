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


def residuals(point: NDArray[np.float64], rows: Sequence[Row], base: Constants) -> list[float]:
    """Scaled log errors of every figure that counts, then the pull towards the defaults."""
    constants = constants_at(point, base)
    found = pull(point, PRIORS)
    for row in rows:
        predicted = predict(row, constants)
        for metric, tolerance in TOLERANCE.items():
            if row.counts(metric):
                found.append(math.log(predicted[metric] / row.measured[metric]) / tolerance)
    return found


def pull(point: NDArray[np.float64], priors: Mapping[str, Prior]) -> list[float]:
    """One residual per constant: how many spreads it is away from its default."""
    return [float(x) / prior.spread for x, prior in zip(point, priors.values(), strict=True)]


def fit(rows: Sequence[Row], base: Constants | None = None, rounds: int = 12) -> Constants:
    """Constants that serve `rows` best; always from the defaults, so no row leaks by the start."""
    known = base or Constants()
    point = least_squares(lambda p: residuals(p, rows, known), np.zeros(len(PRIORS)), rounds)
    return constants_at(point, known)


Residuals = Callable[[NDArray[np.float64]], Sequence[float]]


def least_squares(
    function: Residuals, start: NDArray[np.float64], rounds: int, step: float = 0.03
) -> NDArray[np.float64]:
    """Minimize the sum of squares of `function` (Levenberg 1944, Marquardt 1963). Deterministic.

    The derivative is a difference over `step`: wide, because a schedule that changes makes small
    jumps. Stops after `rounds` steps or when no step helps.
    """
    point, now = start, np.asarray(function(start))
    damping = 1e-2
    for _ in range(rounds):
        columns = [
            (np.asarray(function(point + step * axis)) - now) / step for axis in np.eye(len(point))
        ]
        slope = np.stack(columns, axis=1)  # [residuals, constants]
        curve = slope.T @ slope
        before = float(now @ now)
        for _ in range(4):
            damped = curve + damping * np.diag(np.diag(curve) + 1e-9)
            move = np.clip(np.linalg.solve(damped, -slope.T @ now), -1.0, 1.0)
            then = np.asarray(function(point + move))
            if float(then @ then) < before:
                break
            damping *= 8
        else:
            break
        point, now, damping = point + move, then, damping / 4
        if before - float(now @ now) < 1e-3 * before:
            break
    return point


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

    steps: (shape, seconds). Large errors count less than squared, so that a step that
    the operating system interrupted pulls no harder than many others. A local engine has neither
    network nor front end: both are zero.
    """
    if len(steps) < len(STEP_PRIORS):
        raise ValueError(f"steps: {len(steps)} measured, at least {len(STEP_PRIORS)} are needed")
    base = Constants(preprocess=0.0, network=0.0)

    def at(point: NDArray[np.float64]) -> Constants:
        return constants_at(point, base, STEP_PRIORS)

    def errors(point: NDArray[np.float64]) -> NDArray[np.float64]:
        predicted = StepTime(cost, hardware, at(point))
        return np.array([math.log(predicted.seconds(shape) / took) for shape, took in steps])

    def softened(point: NDArray[np.float64]) -> list[float]:
        # Beyond 10 % the square of this grows like the error itself, not like its square.
        large = np.sqrt(2 * (np.sqrt(1 + (errors(point) / 0.1) ** 2) - 1))
        weak = [x / 3 for x in pull(point, STEP_PRIORS)]
        return [*large.tolist(), *weak]

    point = least_squares(softened, np.zeros(len(STEP_PRIORS)), 40)
    return at(point), float(np.expm1(np.median(np.abs(errors(point)))))


def rounded(constants: Constants) -> dict[str, float]:
    """Constants with four digits: what is written is what is used."""
    values = asdict(constants).items()
    return {name: float(f"{value:.4g}") for name, value in values if value is not None}


def fit_group(rows: Sequence[Row]) -> dict[str, Any]:
    """Entry of `data/step_time.yaml` for the rows of one device and engine."""
    whole = fit(rows)
    without = {}
    if len(rows) > 1:
        for row in rows:
            without[row.key] = rounded(fit([other for other in rows if other is not row]))
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

"""Published measurements beside what the simulator predicts for the same setting. No torch.

The data (`data/published.yaml`) holds what was measured, `data/step_time.yaml` the constants:
one set per device and engine, fitted on all rows of that pair, and for each row a second set
fitted on the other rows only. A prediction made with the second is the leave-one-out prediction:
it has not seen the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

from llmlab.data import data_path
from llmlab.perf.catalog import Catalog
from llmlab.perf.cost import Precision
from llmlab.sim.load import ClosedLoop
from llmlab.sim.simulate import Deployment, deploy, make_scheduler
from llmlab.sim.simulator import Simulator
from llmlab.sim.step_time import Constants, constants_catalog, constants_from_entry
from llmlab.trace import Trace

METRICS = ("ttft_ms", "tpot_ms", "output_rate")
ROUNDS = 3  # requests a user sends; the first and the last round are not measured


@dataclass(frozen=True)
class Row:
    """One measured setting: `measured` by metric; `left_out` metrics do not enter the error."""

    set_id: str
    kind: str
    users: int
    setting: dict[str, Any]
    measured: dict[str, float]
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.set_id}/{self.users}"

    @property
    def constants(self) -> str:
        return str(self.setting["constants"])

    def counts(self, metric: str) -> bool:
        """Was it measured, and does it enter the error?"""
        return metric in self.measured and metric not in self.left_out


def load_rows(path: str | Path | None = None) -> list[Row]:
    """All rows of `data/published.yaml`, in its order."""
    catalog = Catalog.load(path or data_path("published.yaml"), "sets", "set")
    rows = []
    for set_id, entry in catalog.entries.items():
        for row in entry["rows"]:
            measured = {metric: float(row[metric]) for metric in METRICS if metric in row}
            left_out = dict(row.get("leave_out", {}))
            rows.append(Row(set_id, entry["kind"], row["users"], entry, measured, left_out))
    return rows


def deployment_of(row: Row, constants: Constants) -> Deployment:
    """The server of a row's setting."""
    setting = row.setting
    return deploy(
        setting["model"],
        setting["hardware"],
        constants=constants,
        precision=Precision(**setting["precision"]),
        tensor_parallel=setting.get("tensor_parallel", 1),
        **setting["config"],
    )


def load_of(row: Row, placed: Deployment) -> ClosedLoop:
    """The closed loop of a row. A steady load starts its users evenly over one answer."""
    setting, users = row.setting, row.users
    output = setting["output_tokens"]
    stagger = 0
    if setting.get("steady"):
        context = users * (setting["prompt_tokens"] + output // 2)
        run = placed.step_time.decode_run_ns(users, context, output)
        stagger = int(run.sum()) // users
    return ClosedLoop(users, ROUNDS * users, setting["prompt_tokens"], output, stagger)


def predict(row: Row, constants: Constants) -> dict[str, float]:
    """ttft_ms and tpot_ms and output_rate (tokens/s) of a row, simulated."""
    placed = deployment_of(row, constants)
    scheduler = make_scheduler("chunked", placed.config)
    simulator = Simulator(scheduler, placed.step_time, record_steps=False)
    trace = simulator.run(load_of(row, placed))
    return steady_state(trace, row.users, row.setting.get("statistic", "median"))


def steady_state(trace: Trace, users: int, statistic: str = "median") -> dict[str, float]:
    """Figures of a closed loop without its first and last round; latencies as mean or median.

    Output rate by Little's law: users x tokens per request / mean time per request, which holds
    exactly in a closed loop without pauses.
    """
    records = sorted(trace.requests.values(), key=lambda record: record.t_send or 0)
    kept = records[users:-users]
    typical = {"median": median, "mean": mean}[statistic]
    first = [record.events[0].t - (record.t_send or 0) for record in kept]
    last = [record.events[-1].t - (record.t_send or 0) for record in kept]
    tokens = [len(record.events) for record in kept]
    gaps = [
        (whole - ttft) / (n - 1)
        for whole, ttft, n in zip(last, first, tokens, strict=True)
        if n > 1
    ]
    return {
        "ttft_ms": typical(first) / 1e6,
        "tpot_ms": typical(gaps) / 1e6,
        "output_rate": users * mean(tokens) / (mean(last) / 1e9),
    }


def relative_error(predicted: float, measured: float) -> float:
    """Signed, as a fraction of the measurement."""
    return predicted / measured - 1.0


def median_abs_error(errors: Iterable[float]) -> float | None:
    """Median of absolute errors; None without any."""
    sizes = [abs(error) for error in errors]
    return median(sizes) if sizes else None


# ---------------------------------------------------------------- the whole comparison

NAMES = {"ttft_ms": "ttft", "tpot_ms": "tpot", "output_rate": "output_rate"}
TARGETS = {"tpot_ms": 0.10, "output_rate": 0.15}
ESTIMATE_TARGET = 0.15


@dataclass(frozen=True)
class Compared:
    """A row beside two predictions: with constants fitted on it too, and without it."""

    row: Row
    fitted: dict[str, float]
    left_out: dict[str, float]

    def error(self, metric: str, leave_one_out: bool = False) -> float | None:
        """Signed relative error; None where nothing was measured."""
        if metric not in self.row.measured:
            return None
        predicted = (self.left_out if leave_one_out else self.fitted)[metric]
        return relative_error(predicted, self.row.measured[metric])

    def as_dict(self) -> dict[str, Any]:
        setting = self.row.setting
        return {
            "set": self.row.set_id,
            "kind": self.row.kind,
            "users": self.row.users,
            "setting": setting["setting"],
            "source": setting["source"],
            "assumed": setting.get("assumed"),
            "constants": self.row.constants,
            "measured": self.row.measured,
            "predicted": self.fitted,
            "predicted_leave_one_out": self.left_out,
            "error": {m: self.error(m) for m in self.row.measured},
            "error_leave_one_out": {m: self.error(m, True) for m in self.row.measured},
            "left_out_of_error": self.row.left_out,
            "why": self.why(),
        }

    def why(self) -> str | None:
        """What the set's notes say about a row that misses its target; None if it meets it."""
        missed = [
            metric
            for metric, target in TARGETS.items()
            if self.row.counts(metric) and abs(self.error(metric) or 0.0) > target
        ]
        return str(self.row.setting.get("limits", "not explained")) if missed else None


def compare(row: Row) -> Compared:
    """Predict a row with both sets of constants of its device and engine."""
    catalog = constants_catalog()
    entry = catalog.entry(catalog.resolve(row.constants), ("values", "leave_one_out"))
    where = f"{catalog.path}: {row.constants}"
    fitted = predict(row, constants_from_entry(entry["values"], where))
    others = entry["leave_one_out"].get(row.key)
    if others is None:
        raise ValueError(f"{where}: leave_one_out lacks {row.key}: run python -m llmlab.sim.fit")
    return Compared(row, fitted, predict(row, constants_from_entry(others, where)))


def medians(compared: Iterable[Compared], leave_one_out: bool = False) -> dict[str, float | None]:
    """Median absolute error by metric over the rows whose figure counts."""
    rows = list(compared)
    return {
        NAMES[metric]: median_abs_error(
            row.error(metric, leave_one_out) or 0.0 for row in rows if row.row.counts(metric)
        )
        for metric in METRICS
    }


def kv_exhaustion(compared: Iterable[Compared]) -> dict[str, Any]:
    """The 70B table from 100 users on: is the gap flat, does TTFT grow with the queue?"""
    rows = [c for c in compared if c.row.set_id == "H100-70B" and c.row.users >= 100]
    gaps = [c.fitted["tpot_ms"] for c in rows]
    waits = [c.fitted["ttft_ms"] / c.row.measured["ttft_ms"] for c in rows]
    return {
        "users": [c.row.users for c in rows],
        "tpot_spread": max(gaps) / min(gaps) - 1.0,
        "tpot_flat_within_10_percent": max(gaps) / min(gaps) <= 1.10,
        "ttft_ms": [c.fitted["ttft_ms"] for c in rows],
        "ttft_ms_measured": [c.row.measured["ttft_ms"] for c in rows],
        "ttft_of_the_measured_order": all(0.5 <= ratio <= 2.0 for ratio in waits),
    }


def published_report(progress: Callable[[str], Any] = lambda row: None) -> dict[str, Any]:
    """Everything `llmlab simulate --published` shows, as plain data.

    `median_abs_error` is over measured rows only; estimates of other tools have their own.
    progress: told the key of each row before it is simulated.
    """
    rows, compared = load_rows(), []
    for row in rows:
        if row.kind != "reference":
            progress(row.key)
            compared.append(compare(row))
    measured = [c for c in compared if c.row.kind == "measured"]
    estimates = [c for c in compared if c.row.kind == "estimate"]
    return {
        "note": "simulated: every predicted figure comes from the cost model",
        "rows": [c.as_dict() for c in measured],
        "median_abs_error": medians(measured),
        "median_abs_error_leave_one_out": medians(measured, leave_one_out=True),
        "targets": {NAMES[metric]: target for metric, target in TARGETS.items()},
        "kv_exhaustion": kv_exhaustion(measured),
        "estimates": {
            "rows": [c.as_dict() for c in estimates],
            "median_abs_error": medians(estimates),
            "median_abs_error_leave_one_out": medians(estimates, leave_one_out=True),
            "targets": {"tpot": ESTIMATE_TARGET},
        },
        "mixture_of_experts": expert_growth(estimates, rows),
    }


def expert_growth(estimates: Iterable[Compared], known: Iterable[Row]) -> list[dict[str, Any]]:
    """How TPOT grows from 1 to 64 users: dense and MoE, predicted and published."""
    by_set: dict[str, dict[int, Compared]] = {}
    for c in estimates:
        by_set.setdefault(c.row.set_id, {})[c.row.users] = c
    growth = []
    for set_id, rows in by_set.items():
        one, many = rows[1], rows[64]
        growth.append(
            {
                "set": set_id,
                "model": one.row.setting["model"],
                "predicted": many.fitted["tpot_ms"] / one.fitted["tpot_ms"],
                "published": many.row.measured["tpot_ms"] / one.row.measured["tpot_ms"],
            }
        )
    reference = {row.users: row.measured for row in known if row.kind == "reference"}
    growth.append(
        {
            "set": "SEED",
            "model": "qwen3-30b-a3b",
            "predicted": None,
            "published": reference[64]["tpot_ms"] / reference[1]["tpot_ms"],
        }
    )
    return growth

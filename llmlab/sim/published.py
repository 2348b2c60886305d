"""Published measurements beside what the simulator predicts for the same setting. No torch.

The data (`data/published.yaml`) holds what was measured, `data/step_time.yaml` the constants:
one set per device and engine, fitted on all rows of that pair, and for each row a second set
fitted on the other rows only. A prediction made with the second is the leave-one-out prediction:
it has not seen the row.
"""

from __future__ import annotations

from collections.abc import Iterable
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
from llmlab.sim.step_time import Constants
from llmlab.trace import Trace

METRICS = ("ttft_ms", "tpot_ms", "output_rate")
ROUNDS = 4  # requests a user sends; the first and the last round are not measured


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
    """ttft_ms and tpot_ms (medians) and output_rate (tokens/s) of a row, simulated."""
    placed = deployment_of(row, constants)
    scheduler = make_scheduler("chunked", placed.config)
    simulator = Simulator(scheduler, placed.step_time, record_steps=False)
    trace = simulator.run(load_of(row, placed))
    return steady_state(trace, row.users)


def steady_state(trace: Trace, users: int) -> dict[str, float]:
    """Figures of a closed loop without its first and last round.

    Output rate by Little's law: users x tokens per request / mean time per request, which holds
    exactly in a closed loop without pauses.
    """
    records = sorted(trace.requests.values(), key=lambda record: record.t_send or 0)
    kept = records[users:-users]
    first = [record.events[0].t - (record.t_send or 0) for record in kept]
    last = [record.events[-1].t - (record.t_send or 0) for record in kept]
    tokens = [len(record.events) for record in kept]
    gaps = [
        (whole - ttft) / (n - 1)
        for whole, ttft, n in zip(last, first, tokens, strict=True)
        if n > 1
    ]
    return {
        "ttft_ms": median(first) / 1e6,
        "tpot_ms": median(gaps) / 1e6,
        "output_rate": users * mean(tokens) / (mean(last) / 1e9),
    }


def relative_error(predicted: float, measured: float) -> float:
    """Signed, as a fraction of the measurement."""
    return predicted / measured - 1.0


def median_abs_error(errors: Iterable[float]) -> float | None:
    """Median of absolute errors; None without any."""
    sizes = [abs(error) for error in errors]
    return median(sizes) if sizes else None

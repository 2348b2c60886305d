"""What one cell is: a workload served once, in the simulator or by the engine, and its figures.

Everything a cell needs beside its own values is in a `Setting`, resolved once by the one who asks:
workers read no file of the user's, and two runs that resolve to different content differ.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmlab.config import EngineConfig, ModelConfig, require
from llmlab.data import data_path
from llmlab.measure.limits import limits_of, parse_goodput
from llmlab.measure.metrics import Group, summarize
from llmlab.measure.workload import Workload, load_workload, parse_workload
from llmlab.perf.cost import Precision
from llmlab.perf.hardware import Hardware, load_hardware
from llmlab.perf.machine import THIS_MACHINE
from llmlab.perf.models import load_model_config
from llmlab.sim.simulate import POLICIES, simulate, this_machine
from llmlab.sim.step_time import Constants
from llmlab.sweep.grid import Cell, Grid

if TYPE_CHECKING:
    from llmlab.trace import Trace

# What is kept of a cell: name -> words. ms where a name says so; TTFT from the intended send.
FIGURES = {
    "ttft_p50_ms": "TTFT p50, ms",
    "ttft_p95_ms": "TTFT p95, ms",
    "tpot_p50_ms": "TPOT p50, ms",
    "tpot_p95_ms": "TPOT p95, ms",
    "itl_p50_ms": "ITL p50, ms",
    "itl_p95_ms": "ITL p95, ms",
    "itl_p99_ms": "ITL p99, ms",
    "e2e_p50_ms": "E2E p50, ms",
    "e2e_p95_ms": "E2E p95, ms",
    "output_tok_s": "output tokens/s",
    "completed_req_s": "completed requests/s",
    "goodput_req_s": "goodput, requests/s",
    "attainment": "share within every limit",
}
OF_A_CLASS = ("ttft_p50_ms", "ttft_p95_ms", "tpot_p50_ms", "itl_p95_ms", "itl_p99_ms", "attainment")
SIM_DEFAULTS = {
    "workload": "chat_and_documents",
    "model": "llama-3.1-8b",
    "hardware": "h100-sxm",
    "policy": "chunked",
    "tensor_parallel": 1,
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 256,
}
ENGINE_DEFAULTS = {
    "workload": "chat_and_documents_cpu",
    "model": "smollm2-135m",
    "policy": "chunked",
    "max_num_batched_tokens": 256,
    "max_num_seqs": 16,
}
ONLY_SIMULATED = ("hardware", "tensor_parallel")


@dataclass(frozen=True)
class Device:
    """A kind of device with the constants and the storage that were resolved for it."""

    hardware: Hardware
    constants: Constants | None
    precision: Precision | None


@dataclass(frozen=True)
class Setting:
    """What all cells of a sweep share.

    workloads, models, devices: by the name that the grid uses. num_prompts: requests a cell, None
    = as the workload says. goodput: limits as `parse_goodput` reads them; () = the workload's.
    """

    engine: bool = False
    workloads: dict[str, dict[str, Any]] = field(default_factory=dict)
    models: dict[str, ModelConfig] = field(default_factory=dict)
    devices: dict[str, Device] = field(default_factory=dict)
    num_prompts: int | None = None
    goodput: tuple[str, ...] = ()
    gpu_memory_utilization: float = 0.9

    def to_dict(self) -> dict[str, Any]:
        """For the header of a results file: contents as digests, so that a change is seen."""
        return {
            "where": "engine" if self.engine else "simulator",
            "num_prompts": self.num_prompts,
            "goodput": list(self.goodput),
            "gpu_memory_utilization": self.gpu_memory_utilization,
            "workloads": {name: _digest(data) for name, data in self.workloads.items()},
            "models": {name: _digest(asdict(model)) for name, model in self.models.items()},
            "devices": {name: _digest(asdict(device)) for name, device in self.devices.items()},
        }

    def load(self, cell: Cell) -> Workload:
        """The workload of a cell; ValueError where the cell asks what it cannot be."""
        base = self.workloads[cell["workload"]]
        changes: dict[str, Any] = {}
        if cell["mix"] is not None:
            changes["classes"] = _mixed(base, cell["mix"])
        if cell["users"] is not None:
            changes["arrivals"] = {"kind": "closed", "concurrency": cell["users"]}
        if cell["rate"] is not None:
            kept = base["arrivals"] if "request_rate" in base["arrivals"] else {"kind": "poisson"}
            changes["arrivals"] = {**kept, "request_rate": cell["rate"]}
        if cell["seed"] is not None:
            changes["seed"] = cell["seed"]
        if self.num_prompts is not None:
            changes["stop"] = {"num_prompts": self.num_prompts}
        return parse_workload(base | changes, f"workload {cell['workload']}")


def make_setting(
    grid: Grid,
    *,
    engine: bool = False,
    num_prompts: int | None = None,
    goodput: tuple[str, ...] = (),
    weights: str | None = None,
    kv: str | None = None,
    gpu_memory_utilization: float = 0.9,
    model_file: Path | None = None,
    hardware_file: Path | None = None,
) -> Setting:
    """Resolve every name of the grid; ValueError for the first that cannot be used.

    A model that does not fit its device is found in its cell, not here.
    """
    require(num_prompts is None or num_prompts >= 1, "sweep", "num_prompts", num_prompts, ">= 1")
    share = 0 < gpu_memory_utilization <= 1
    require(share, "sweep", "gpu_memory_utilization", gpu_memory_utilization, "a share in (0, 1]")
    for policy in grid.axes["policy"]:
        if policy not in POLICIES:
            raise ValueError(f"policy {policy!r}: must be one of {', '.join(POLICIES)}")
    names = grid.axes["workload"]
    workloads = {name: load_workload(name).to_dict() for name in names}
    models, devices = {}, {}
    if engine:
        for axis in ONLY_SIMULATED:
            if grid.axes[axis] != (None,):
                raise ValueError(f"{axis}: the engine runs on this machine; leave it out")
    else:
        models = {name: load_model_config(name, model_file) for name in grid.axes["model"]}
        for name in grid.axes["hardware"]:
            devices[name] = _device(name, hardware_file, weights, kv)
    setting = Setting(
        engine, workloads, models, devices, num_prompts, goodput, gpu_memory_utilization
    )
    _try_loads(grid, setting)
    return setting


def _device(name: str, path: Path | None, weights: str | None, kv: str | None) -> Device:
    if name == THIS_MACHINE:
        hardware, constants, stored = this_machine()
        given = Precision(weights or stored.weights, kv or stored.kv)
        return Device(hardware, constants, given)
    return Device(load_hardware(name, path), None, Precision(weights or "bf16", kv or "bf16"))


def _try_loads(grid: Grid, setting: Setting) -> None:
    """Each workload with each mix, and the ends of the other axes: what cannot be, said at once."""
    axes = grid.axes
    ends = [dict.fromkeys((axes[name][0], axes[name][-1])) for name in ("seed", "users", "rate")]
    for workload, mix, seed, users, rate in product(axes["workload"], axes["mix"], *ends):
        chosen = {"workload": workload, "mix": mix, "seed": seed, "users": users, "rate": rate}
        load = setting.load(chosen)
        if setting.goodput:
            parse_goodput(setting.goodput, [c.name for c in load.classes])


def _mixed(base: dict[str, Any], mix: str) -> list[dict[str, Any]]:
    shares = [float(share) for share in mix.split(":")]
    classes = base["classes"]
    if len(shares) != len(classes):
        names = ", ".join(c["name"] for c in classes)
        raise ValueError(f"mix {mix}: {len(shares)} shares for {len(classes)} classes ({names})")
    return [{**c, "share": share} for c, share in zip(classes, shares, strict=True)]


def cell_function(setting: Setting) -> Callable[[Cell], dict[str, Any]]:
    """The function of a cell, for an executor: pure in the simulator, measured on the engine."""
    return partial(engine_cell if setting.engine else simulated_cell, setting)


def simulated_cell(setting: Setting, cell: Cell) -> dict[str, Any]:
    """Figures of a cell in the simulator: equal for equal cells. ValueError if it cannot be."""
    device = setting.devices[cell["hardware"]]
    trace = simulate(
        setting.load(cell),
        setting.models[cell["model"]],
        device.hardware,
        policy=cell["policy"],
        constants=device.constants,
        precision=device.precision,
        tensor_parallel=cell["tensor_parallel"],
        gpu_memory_utilization=setting.gpu_memory_utilization,
        max_num_batched_tokens=cell["max_num_batched_tokens"],
        max_num_seqs=cell["max_num_seqs"],
        record_steps=False,
    )
    return figures(trace, setting.goodput)


def engine_cell(setting: Setting, cell: Cell) -> dict[str, Any]:
    """Figures of a cell on the real engine on this machine's CPU, after one warm-up request."""
    from llmlab.engine import Engine
    from llmlab.measure.run import run_workload

    load = setting.load(cell)
    requests = load.requests()
    longest = max(r.prompt_tokens + r.output_tokens for r in requests)
    seqs = cell["max_num_seqs"]
    config = EngineConfig(
        max_num_batched_tokens=cell["max_num_batched_tokens"],
        max_num_seqs=seqs,
        num_blocks=-(-longest // 16) * min(seqs, len(requests)),
        max_model_len=longest,
    )
    engine = Engine(_model(cell["model"]), config, POLICIES[cell["policy"]])
    return figures(run_workload(engine, load, num_warmups=1), setting.goodput)


@lru_cache(maxsize=1)
def _model(name: str) -> Any:
    """A model stays loaded while its cells are run; the grid's slowest axis is the model."""
    from llmlab.engine import load_model

    return load_model(name)


def figures(trace: Trace, goodput: tuple[str, ...] = ()) -> dict[str, Any]:
    """The figures of FIGURES, counts, and some figures of each class; None where undefined."""
    names = list(dict.fromkeys(record.class_name for record in trace.requests.values()))
    limits = parse_goodput(goodput, names) if goodput else limits_of(trace)
    summary = summarize(trace, limits={k: v for k, v in limits.items() if k in names})
    counts = summary.all.counts
    return {
        **_of(summary.all),
        "submitted": counts.submitted,
        "completed": counts.completed,
        "rejected": counts.rejected,
        "preemptions": sum(len(r.preemptions) for r in trace.requests.values()),
        "classes": {
            name: {key: value for key, value in _of(group).items() if key in OF_A_CLASS}
            for name, group in summary.classes.items()
        },
    }


def _of(group: Group) -> dict[str, float | None]:
    """The figures of one group, by the names of FIGURES."""
    rates = group.rates
    known: dict[str, float | None] = {
        "output_tok_s": rates.output_tok_s,
        "completed_req_s": rates.completed_req_s,
        "goodput_req_s": rates.goodput_req_s,
        "attainment": group.attainment,
    }
    for name in FIGURES:
        if name not in known:
            key, percentile, _ = name.split("_")
            known[name] = group.as_meant(key).percentiles[percentile]
    return {name: known[name] for name in FIGURES}


def sources(engine: bool) -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """Parts of llmlab and data files that decide a cell's figures, for `code_version`."""
    parts = ("config", "trace", "sched", "perf", "sim", "measure", "sweep")
    if engine:
        return (*parts, "engine"), ()
    names = ("hardware.yaml", "models.yaml", "step_time.yaml")
    return parts, tuple(data_path(name) for name in names)


def _digest(data: Any) -> str:
    text = json.dumps(data, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]

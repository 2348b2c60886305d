"""The same workload on the same number of devices, used in two ways: replicas, or xP yD pools.

`simulate_replicas`: each device does prefill and decode. `simulate_disaggregated`: x devices do
prefill, y do decode, and the keys and values move over a link. No torch.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from llmlab.config import EngineConfig, ModelConfig, require, require_int
from llmlab.perf.hardware import Hardware
from llmlab.perf.interconnect import Interconnect, load_interconnect
from llmlab.sched.base import BaseScheduler
from llmlab.sched.chunked import Chunked
from llmlab.sched.continuous import Continuous
from llmlab.sim.disaggregated import Disaggregated
from llmlab.sim.fleet import Replicas
from llmlab.sim.simulate import (
    Deployment,
    SchedulerFactory,
    deploy,
    describe,
    drawn_with,
    make_scheduler,
    policy_name,
)
from llmlab.trace import Trace

MOST_WORKERS = 64
PREFILL_POLICIES: dict[str, type[BaseScheduler]] = {"chunked": Chunked, "continuous": Continuous}


@dataclass(frozen=True)
class Pools:
    """How many workers prefill and how many decode; written 1P1D."""

    prefill: int = 1
    decode: int = 1

    def __post_init__(self) -> None:
        for name in ("prefill", "decode"):
            require_int("Pools", name, getattr(self, name), 1, MOST_WORKERS)

    @classmethod
    def parse(cls, text: str) -> Pools:
        """From "1P1D", in either case; ValueError with the form otherwise."""
        match = re.fullmatch(r"\s*(\d{1,3})\s*P\s*(\d{1,3})\s*D\s*", str(text), re.IGNORECASE)
        if match is None:
            raise ValueError(f"pools = {text!r}: must be like 1P1D or 2P1D (prefill, decode)")
        return cls(int(match[1]), int(match[2]))

    @property
    def workers(self) -> int:
        return self.prefill + self.decode

    def __str__(self) -> str:
        return f"{self.prefill}P{self.decode}D"


def link_of(hardware: Hardware, interconnect: str | Interconnect | None) -> Interconnect:
    """The link to use: as given, by name, or the one the device itself states."""
    if isinstance(interconnect, Interconnect):
        return interconnect
    if interconnect is not None:
        return load_interconnect(interconnect)
    stated = hardware.interconnect
    require(stated > 0, hardware.name, "interconnect", None, "given: this device states none")
    return Interconnect(f"{hardware.name}'s own", hardware.title, stated, source=hardware.source)


def simulate_disaggregated(
    workload: Any,
    model: str | ModelConfig,
    hardware: str | Hardware,
    pools: str | Pools = "1P1D",
    *,
    interconnect: str | Interconnect | None = None,
    local_below: int = 64,
    prefill_policy: str = "chunked",
    prefill_knobs: dict[str, Any] | None = None,
    config: EngineConfig | None = None,
    seed: int | None = None,
    record_steps: bool = True,
    leap: bool = True,
    **deployment: Any,
) -> Trace:
    """Serve a workload on x prefill and y decode workers of one kind of device.

    interconnect: a link's name or an Interconnect; None: the one the device states. local_below:
    prompts with fewer tokens are computed by the decode worker. prefill_knobs: what differs in
    the prefill workers' EngineConfig. Further arguments are those of `deploy`; with
    tensor_parallel a worker is that many devices, with that many links side by side.
    The trace's meta has `moves`, one for each prompt that was moved (see `Move`).
    """
    workload = drawn_with(workload, seed)
    split = pools if isinstance(pools, Pools) else Pools.parse(pools)
    placed = deploy(model, hardware, config=config, **deployment)
    link = link_of(placed.hardware, interconnect)
    prefill = _prefill_schedulers(placed, prefill_policy, prefill_knobs or {}, split.prefill)
    cost, side_by_side = placed.cost, placed.cost.tensor_parallel
    simulator = Disaggregated(
        prefill,
        placed.config,
        split.decode,
        placed.step_time,
        link,
        kv_bytes=round(cost.kv_bytes * side_by_side),
        links=side_by_side,
        layers=cost.model.num_hidden_layers,
        local_below=local_below,
        record_steps=record_steps,
        leap=leap,
    )
    trace = simulator.run(workload)
    describe(
        trace,
        placed,
        workload,
        seed,
        policy="disaggregated",
        pools=str(split),
        interconnect=asdict(link),
        local_below=local_below,
        prefill_policy=prefill_policy,
        prefill_config=asdict(prefill[0].config),
        kv_bytes_per_token=simulator.kv_bytes,
    )
    return trace


def _prefill_schedulers(
    placed: Deployment, policy: str, knobs: dict[str, Any], count: int
) -> list[BaseScheduler]:
    """One for each prefill worker; ValueError for what they cannot do."""
    if placed.config.enable_prefix_caching:
        raise ValueError("enable_prefix_caching: not modelled where prefill and decode run apart")
    if policy not in PREFILL_POLICIES:
        allowed = ", ".join(PREFILL_POLICIES)
        raise ValueError(f"prefill_policy = {policy!r}: must be one of {allowed}")
    config = placed.config.with_(**knobs)
    return [PREFILL_POLICIES[policy](config) for _ in range(count)]


def simulate_replicas(
    workload: Any,
    model: str | ModelConfig,
    hardware: str | Hardware,
    replicas: int = 2,
    *,
    policy: str | SchedulerFactory = "chunked",
    config: EngineConfig | None = None,
    seed: int | None = None,
    record_steps: bool = True,
    leap: bool = True,
    **deployment: Any,
) -> Trace:
    """Serve a workload on equal workers that each do prefill and decode."""
    require_int("simulate_replicas", "replicas", replicas, 1, 2 * MOST_WORKERS)
    workload = drawn_with(workload, seed)
    placed = deploy(model, hardware, config=config, **deployment)
    schedulers = [make_scheduler(policy, placed.config) for _ in range(replicas)]
    trace = Replicas(schedulers, placed.step_time, record_steps, leap).run(workload)
    describe(trace, placed, workload, seed, policy=policy_name(policy), replicas=replicas)
    return trace


def moved_summary(trace: Trace) -> dict[str, Any]:
    """What a disaggregated run moved, how long it took and what of it showed, and the queues.

    Times in ms, bytes whole. requests_moved: whose prompt arrived; requests_local: whose prompt
    the decode workers computed. bytes_formula: tokens moved times 2 layers kv_heads head_dim bytes.
    queues: for each worker the most and the mean (over its steps) of waiting requests.
    """
    moves = trace.meta["moves"]
    there = [move for move in moves if move["t_last_transfer"] is not None]
    tokens = sum(move["tokens"] for move in moves)
    asked = {move["request_id"] for move in moves}
    begun = {name for name, r in trace.requests.items() if r.t_first_scheduled is not None}
    queues: dict[str, list[int]] = {}
    for step in trace.steps:
        queues.setdefault(step.worker, []).append(step.num_waiting)
    return {
        "requests_moved": len(there),
        "requests_local": len(begun - asked),
        "tokens_moved": tokens,
        "bytes_moved": sum(move["bytes"] for move in moves),
        "bytes_formula": tokens * trace.meta["kv_bytes_per_token"],
        "transfer_ms": _percentiles([move["busy_ns"] for move in there]),
        "visible_ms": _percentiles([move["visible_ns"] for move in there]),
        "queues": {
            worker: {"max_waiting": max(waits), "mean_waiting": sum(waits) / len(waits)}
            for worker, waits in sorted(queues.items())
        },
    }


def _percentiles(nanoseconds: list[int]) -> dict[str, float | None]:
    """In ms, numpy's linear ones; None without any."""
    names = ("p50", "p95", "max")
    if not nanoseconds:
        return dict.fromkeys(names)
    found = np.percentile(nanoseconds, (50, 95, 100)).tolist()
    return {name: value / 1e6 for name, value in zip(names, found, strict=True)}

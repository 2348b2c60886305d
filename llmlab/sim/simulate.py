"""`simulate`: a workload, a model, a device and the engine's knobs in; a trace out. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from llmlab.config import EngineConfig, ModelConfig
from llmlab.perf.cost import CostModel, Precision
from llmlab.perf.hardware import Hardware, load_hardware
from llmlab.perf.machine import THIS_MACHINE, load_machine, machine_file, machine_hardware
from llmlab.perf.models import load_model_config
from llmlab.sched.chunked import Chunked
from llmlab.sched.continuous import Continuous
from llmlab.sched.plan import Scheduler
from llmlab.sched.static import Static
from llmlab.sim.load import ClosedLoop
from llmlab.sim.memory import check_pool, engine_config
from llmlab.sim.simulator import NOTE, Simulator
from llmlab.sim.step_time import (
    Constants,
    StepTime,
    constants_from_entry,
    default_constants,
)
from llmlab.trace import Trace

SchedulerFactory = Callable[[EngineConfig], Scheduler]

POLICIES: dict[str, SchedulerFactory] = {
    "chunked": Chunked,
    "continuous": Continuous,
    "static": Static,
}


@dataclass(frozen=True)
class Deployment:
    """One model on one kind of device, with the knobs of the engine that serves it.

    `num_blocks` of `config` is what fits beside the weights unless it was given.
    """

    cost: CostModel
    hardware: Hardware
    constants: Constants
    config: EngineConfig

    @property
    def step_time(self) -> StepTime:
        return StepTime(self.cost, self.hardware, self.constants)


def deploy(
    model: str | ModelConfig,
    hardware: str | Hardware,
    *,
    config: EngineConfig | None = None,
    constants: Constants | None = None,
    precision: Precision | None = None,
    tensor_parallel: int = 1,
    gpu_memory_utilization: float = 0.9,
    **knobs: Any,
) -> Deployment:
    """Put a model on a device; raises ValueError, with the bytes missing, if it does not fit.

    hardware: a name, a Hardware, or "this-machine" after `llmlab calibrate`.
    config: all knobs; or single knobs by name (max_num_batched_tokens=..., max_num_seqs=...),
    in which case the pool takes the memory that is left. constants: None takes those fitted for
    the device, or the stated defaults.
    """
    shape = load_model_config(model) if isinstance(model, str) else model
    if hardware == THIS_MACHINE:
        device, measured, stored = this_machine()
        constants, precision = constants or measured, precision or stored
    else:
        device = load_hardware(hardware) if isinstance(hardware, str) else hardware
    cost = CostModel(shape, precision or Precision(), tensor_parallel)
    if config is None:
        config = engine_config(cost, device, gpu_memory_utilization, **knobs)
    else:
        if knobs:
            raise ValueError(f"give either config or single knobs, not both: {', '.join(knobs)}")
        check_pool(cost, device, config, gpu_memory_utilization)
    return Deployment(cost, device, constants or default_constants(device.name), config)


def this_machine() -> tuple[Hardware, Constants, Precision]:
    """What `llmlab calibrate` kept: this machine, its constants, and how its engine stores."""
    device = machine_hardware()  # says what to run if nothing was kept
    kept = load_machine() or {}
    constants = constants_from_entry(kept.get("constants"), str(machine_file()))
    try:
        return device, constants, Precision(**kept.get("precision", {}))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{machine_file()}: precision: {error}") from error


def drawn_with(workload: Any, seed: int | None) -> Any:
    """The workload with another seed; None, and what draws nothing, leave it as it is."""
    draws = seed is not None and hasattr(workload, "with_")
    return workload.with_(seed=seed) if draws else workload


def policy_name(policy: str | SchedulerFactory) -> str:
    """What a trace calls a policy: its name, or that of a class of one's own."""
    return policy if isinstance(policy, str) else getattr(policy, "__name__", "custom")


def make_scheduler(policy: str | SchedulerFactory, config: EngineConfig) -> Scheduler:
    """A scheduler by name, or from a class of one's own that takes an EngineConfig."""
    if callable(policy):
        return policy(config)
    if policy not in POLICIES:
        raise ValueError(f"policy = {policy!r}: must be one of {', '.join(POLICIES)}")
    return POLICIES[policy](config)


def simulate(
    workload: Iterable[Any] | ClosedLoop,
    model: str | ModelConfig,
    hardware: str | Hardware,
    config: EngineConfig | None = None,
    policy: str | SchedulerFactory = "chunked",
    seed: int | None = None,
    *,
    record_steps: bool = True,
    **deployment: Any,
) -> Trace:
    """Serve a workload on a simulated server and return its trace.

    workload: Arrival objects or rows (t_arrival_ns, prompt_tokens, output_tokens[, class_name]),
    a measure.workload.Workload, or a ClosedLoop. policy: "chunked", "continuous", "static", or a
    Scheduler class. seed: of what a Workload draws (None: its own); the simulation itself draws
    nothing, so the same arguments give the same trace.
    record_steps=False leaves the step records out, for very long runs.
    Further arguments are those of `deploy`. Raises ValueError for bad input.
    """
    workload = drawn_with(workload, seed)
    placed = deploy(model, hardware, config=config, **deployment)
    scheduler = make_scheduler(policy, placed.config)
    trace = Simulator(scheduler, placed.step_time, record_steps).run(workload)
    describe(trace, placed, workload, seed, policy=policy_name(policy))
    return trace


def describe(
    trace: Trace, placed: Deployment, workload: Any, seed: int | None, **more: Any
) -> None:
    """Write into a trace's meta what was simulated, and that it was."""
    trace.meta.update(
        source="simulator",
        simulated=True,
        note=NOTE,
        seed=getattr(workload, "seed", seed),
        model=placed.cost.model.name,
        hardware=placed.hardware.name,
        tensor_parallel=placed.cost.tensor_parallel,
        precision=asdict(placed.cost.precision),
        config=asdict(placed.config),
        constants=asdict(placed.constants),
        **more,
    )
    # What was asked, so that a reader can tell a closed loop from a schedule, and find the limits.
    if isinstance(workload, ClosedLoop):
        closed = {"kind": "closed", "concurrency": workload.users, "think_ns": workload.think_ns}
        trace.meta["workload"] = {"arrivals": closed}
    elif hasattr(workload, "to_dict"):
        trace.meta["workload"] = workload.to_dict()

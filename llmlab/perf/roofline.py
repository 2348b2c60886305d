"""How near a step came to the machine's ceilings, and to which one.

Achieved rate = counted FLOPs or bytes / measured time; a share is that over the ceiling, which
is measured on this machine (perf.calibrate) or a vendor's figure (perf.hardware). No torch.

"GPU utilization 100 %" (NVML, nvidia-smi) means neither share: it is the part of the sample
period in which at least one kernel was running, whatever that kernel achieved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from llmlab.config import require
from llmlab.perf.cost import CostModel, StepShape, trace_shapes
from llmlab.perf.hardware import Hardware
from llmlab.trace import StepRecord, Trace

NVML_SENTENCE = (
    '"GPU utilization 100 %" means neither of the two shares: it only says that at least one '
    "kernel was running all the time, not how much arithmetic or memory traffic it achieved."
)

PHASES = ("prefill", "decode", "mixed")

# Under this share of both roofs the step is bound by neither (overheads, waiting, small kernels).
NEAR = 0.4


@dataclass(frozen=True)
class Utilization:
    """Achieved figures of one step or of several together."""

    flops: float
    bytes: float
    seconds: float
    peak_flops: float
    bandwidth: float

    @property
    def compute_share(self) -> float:
        """Achieved FLOP/s over the compute ceiling."""
        return self.flops / self.seconds / self.peak_flops

    @property
    def bandwidth_share(self) -> float:
        """Achieved bytes/s over the bandwidth ceiling."""
        return self.bytes / self.seconds / self.bandwidth

    @property
    def intensity(self) -> float:
        """FLOPs per byte; above the ridge the compute roof is the lower one."""
        return self.flops / self.bytes

    @property
    def ridge(self) -> float:
        return self.peak_flops / self.bandwidth

    @property
    def roof(self) -> str:
        """The roof that bounds this intensity: "compute" or "bandwidth"."""
        return "compute" if self.intensity > self.ridge else "bandwidth"

    @property
    def near(self) -> str:
        """The roof the step came near to, or "neither"."""
        compute, memory = self.compute_share, self.bandwidth_share
        if max(compute, memory) < NEAR:
            return "neither"
        return "compute" if compute > memory else "bandwidth"

    def as_numbers(self) -> dict[str, float]:
        """Plain numbers for `StepRecord.utilization`."""
        return {
            "flops": self.flops,
            "bytes": self.bytes,
            "flops_per_s": self.flops / self.seconds,
            "bytes_per_s": self.bytes / self.seconds,
            "compute_share": self.compute_share,
            "bandwidth_share": self.bandwidth_share,
            "intensity": self.intensity,
        }


def utilization(
    shape: StepShape, seconds: float, cost: CostModel, ceilings: Hardware
) -> Utilization:
    """Utilization of one step of this shape that took `seconds`."""
    require(seconds > 0, "utilization", "seconds", seconds, "> 0")
    counted = cost.cost(shape)
    peak = ceilings.flops(cost.precision.weights)
    return Utilization(counted.flops, counted.bytes, seconds, peak, ceilings.bandwidth)


def phase(step: StepRecord) -> str:
    """ "decode", "prefill" or "mixed", by what the step computed."""
    if step.prefill_tokens == 0:
        return "decode"
    return "mixed" if step.decode_tokens else "prefill"


def annotate(trace: Trace, cost: CostModel, ceilings: Hardware) -> list[Utilization]:
    """Fill `utilization` of every step of a trace; returns the same figures in order."""
    figures = []
    for step, shape in zip(trace.steps, trace_shapes(trace), strict=True):
        # The device's own clock where there is one: a step that reads nothing back ends on the
        # host before it ends on the device.
        measured = step.utilization or {}
        seconds = measured.get("device_seconds", (step.t_end - step.t_start) / 1e9)
        figure = utilization(shape, seconds, cost, ceilings)
        step.utilization = {**measured, **figure.as_numbers()}
        figures.append(figure)
    return figures


@dataclass(frozen=True)
class PhaseSummary:
    """All steps of one phase: `whole` adds up work and time, so long steps weigh more."""

    phase: str
    steps: int
    median_step_ms: float
    whole: Utilization


def by_phase(
    trace: Trace, cost: CostModel, ceilings: Hardware, since: int = 0
) -> list[PhaseSummary]:
    """Utilization of a trace by phase; phases that did not occur are left out.

    since: only steps that end at this time (ns) or later count.
    """
    figures = annotate(trace, cost, ceilings)
    recent = [(s, f) for s, f in zip(trace.steps, figures, strict=True) if s.t_end >= since]
    summaries = []
    for name in PHASES:
        mine = [f for s, f in recent if phase(s) == name]
        if mine:
            typical = median(figure.seconds for figure in mine) * 1e3
            summaries.append(PhaseSummary(name, len(mine), typical, _together(mine)))
    return summaries


def _together(figures: Sequence[Utilization]) -> Utilization:
    first = figures[0]
    return Utilization(
        sum(figure.flops for figure in figures),
        sum(figure.bytes for figure in figures),
        sum(figure.seconds for figure in figures),
        first.peak_flops,
        first.bandwidth,
    )


def attainable_flops(intensity: float, peak_flops: float, bandwidth: float) -> float:
    """The roofline: min(peak, intensity * bandwidth), in FLOP/s (Williams et al., 2009)."""
    return min(peak_flops, intensity * bandwidth)


def nvml_figures(index: int = 0) -> dict[str, float | str] | None:
    """NVML's own figures of one NVIDIA GPU, with the sentence on what they mean; None without it.

    gpu_percent: share of the last sample period with a kernel running; memory_percent: share
    with memory being read or written; both between 1/6 s and 1 s long, says NVML's manual.
    """
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return {
            "gpu_percent": float(rates.gpu),
            "memory_percent": float(rates.memory),
            "memory_used": float(memory.used),
            "memory_total": float(memory.total),
            "meaning": NVML_SENTENCE,
        }
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()

"""How long a step takes: a fixed overhead, then each part at the slower of its two roofs.

    t = step_overhead + request_overhead * requests + communication
        + sum over parts of max(FLOPs / (peak * compute_efficiency),
                                bytes / (bandwidth * bandwidth_efficiency))

The constants are data, fitted once per device and engine (`data/step_time.yaml`, or this
machine's own from `llmlab calibrate`). What each stands for:

  compute_efficiency, bandwidth_efficiency   share of the stated peak that real kernels reach
  attention_compute_efficiency, attention_bandwidth_efficiency   the same for attention, where it
                     differs (an engine that gathers pages before it multiplies); None: the same
  step_overhead      launching kernels and running the scheduler, once per step
  request_overhead   sampling, scheduling and streaming work per request in the step
  expert_overhead    routing and the small kernels around the experts, once per MoE layer
  allreduce_latency  start-up of one all-reduce, two per layer under tensor parallelism
  preprocess, preprocess_per_token   tokenizing and queueing in the front end, one at a time
  network            one way between client and server

This module reads no clock. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmlab.config import is_real, require
from llmlab.data import data_path
from llmlab.perf.catalog import Catalog
from llmlab.perf.cost import CostModel, StepShape
from llmlab.perf.hardware import Hardware

NS = 1_000_000_000
_ACTIVATION_BYTES = 2  # all-reduced activations are 16 bit


@dataclass(frozen=True)
class Constants:
    """Fitted constants; times in seconds. See the module's docstring for their meaning."""

    compute_efficiency: float = 0.6
    bandwidth_efficiency: float = 0.8
    step_overhead: float = 1e-3
    request_overhead: float = 2e-5
    expert_overhead: float = 1e-5
    allreduce_latency: float = 1e-5
    preprocess: float = 5e-3
    preprocess_per_token: float = 0.0
    network: float = 0.0
    attention_compute_efficiency: float | None = None
    attention_bandwidth_efficiency: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            if field.name.endswith("_efficiency"):
                fits, allowed = is_real(value) and 0 < value <= 1, "in (0, 1]"
            else:
                fits, allowed = is_real(value) and value >= 0, "seconds >= 0"
            require(fits, "Constants", field.name, value, allowed)


def constants_catalog(path: str | Path | None = None) -> Catalog:
    """The entries of `data/step_time.yaml`, or of `path`."""
    return Catalog.load(path or data_path("step_time.yaml"), "constants", "constants")


def load_constants(name: str, path: str | Path | None = None) -> Constants:
    """Constants of one device and engine by name, e.g. "h100-sxm/vllm"."""
    catalog = constants_catalog(path)
    key = catalog.resolve(name)
    return constants_from_entry(catalog.entry(key, ("values",))["values"], f"{catalog.path}: {key}")


def constants_from_entry(values: Any, where: str) -> Constants:
    """Constants from a yaml mapping; an unknown or bad field names the file and entry."""
    known = [field.name for field in fields(Constants)]
    if not isinstance(values, dict) or not set(values) <= set(known):
        raise ValueError(f"{where}: values = {values!r}: must map some of {', '.join(known)}")
    try:
        return Constants(**values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


class StepTime:
    """Predicts a step's duration for one model on one kind of device.

    Every coefficient is worked out once here, because the simulator asks a million times.
    """

    def __init__(self, cost: CostModel, hardware: Hardware, constants: Constants) -> None:
        self.cost = cost
        self.hardware = hardware
        self.constants = constants
        self._flops = hardware.flops(cost.precision.weights) * constants.compute_efficiency
        self._bandwidth = hardware.bandwidth * constants.bandwidth_efficiency
        # Attention multiplies cached values; narrower ones are widened to 16 bit.
        rate = hardware.flops("fp32" if cost.precision.kv == "fp32" else "fp16")
        rate *= constants.attention_compute_efficiency or constants.compute_efficiency
        self._pair_seconds = cost.pair_flops / rate
        share = constants.attention_bandwidth_efficiency or constants.bandwidth_efficiency
        self._kv_seconds = cost.kv_bytes / (hardware.bandwidth * share)
        self._allreduce = self._allreduce_seconds()
        self._base_cache: dict[tuple[int, int, int], float] = {}

    def _allreduce_seconds(self) -> float:
        """Seconds per token of the ring all-reduces: each device sends 2 (tp-1)/tp of the sum."""
        tp = self.cost.tensor_parallel
        if tp == 1:
            return 0.0
        link = self.hardware.interconnect
        require(link > 0, "Hardware", "interconnect_gb_s", link, "> 0 for tensor parallelism")
        model = self.cost.model
        sent = model.hidden_size * _ACTIVATION_BYTES * 2 * (tp - 1) / tp
        return 2 * model.num_hidden_layers * sent / link

    def base_seconds(self, num_tokens: int, num_sampled: int, num_requests: int) -> float:
        """All of a step but its attention, which alone depends on the context lengths."""
        key = (num_tokens, num_sampled, num_requests)
        seconds = self._base_cache.get(key)
        if seconds is None:
            seconds = self._base_cache[key] = self._base(num_tokens, num_sampled, num_requests)
        return seconds

    def _base(self, tokens: int, sampled: int, requests: int) -> float:
        cost, constants = self.cost, self.constants
        seconds = constants.step_overhead + constants.request_overhead * requests
        if cost.model.num_experts:
            seconds += cost.model.num_hidden_layers * constants.expert_overhead
        if cost.tensor_parallel > 1:
            reduces = 2 * cost.model.num_hidden_layers
            seconds += reduces * constants.allreduce_latency + tokens * self._allreduce
        shape = StepShape(tokens, sampled, requests, 0, 0)
        for name, part in cost.cost(shape).parts.items():
            if name != "attention":
                seconds += max(part.flops / self._flops, part.bytes / self._bandwidth)
        return seconds

    def seconds(self, shape: StepShape) -> float:
        """Predicted duration of one step."""
        base = self.base_seconds(shape.num_tokens, shape.num_sampled, shape.num_requests)
        compute = shape.attention_pairs * self._pair_seconds
        memory = shape.kv_read_tokens * self._kv_seconds
        return base + max(compute, memory)

    def step_ns(self, shape: StepShape) -> int:
        """Predicted duration in whole nanoseconds, at least 1."""
        return max(1, round(self.seconds(shape) * NS))

    def decode_run_ns(self, num_requests: int, kv_read: int, steps: int) -> NDArray[np.int64]:
        """Durations [steps] of a run in which `num_requests` requests decode and none changes.

        The first step reads `kv_read` cached tokens, each later one `num_requests` more. Equal
        to `step_ns` of each step in turn, bit for bit: the same operations in the same order.
        """
        base = self.base_seconds(num_requests, num_requests, num_requests)
        kv = kv_read + num_requests * np.arange(steps, dtype=np.int64)  # [steps]
        attention = np.maximum(kv * self._pair_seconds, kv * self._kv_seconds)
        whole: NDArray[np.int64] = np.rint((base + attention) * NS).astype(np.int64)
        return np.maximum(whole, 1)


class FixedStepTime:
    """Every step lasts the same: for the closed forms of queueing and batching."""

    def __init__(self, nanoseconds: int) -> None:
        require(nanoseconds >= 1, "FixedStepTime", "nanoseconds", nanoseconds, ">= 1")
        self.nanoseconds = nanoseconds
        self.constants = Constants(preprocess=0.0)

    def step_ns(self, shape: StepShape) -> int:
        return self.nanoseconds

    def decode_run_ns(self, num_requests: int, kv_read: int, steps: int) -> NDArray[np.int64]:
        return np.full(steps, self.nanoseconds, dtype=np.int64)


def default_constants(hardware: str) -> Constants:
    """Constants of a device where none are named: its `default_for` entry's, else the class's.

    The class's defaults are round figures typical of the fitted entries, not a fit.
    """
    catalog = constants_catalog()
    for key, entry in catalog.entries.items():
        if hardware in entry.get("default_for", ()):
            return load_constants(key)
    return Constants()

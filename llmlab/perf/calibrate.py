"""Measure this machine: its ceilings, and real engine steps of many shapes.

The only file of this floor that uses torch. What a step should cost is perf.cost's business,
how constants follow from the steps is `fit_steps`'s; here is only the measuring.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from llmlab.config import EngineConfig
from llmlab.engine.half_linear import half_linear
from llmlab.perf.cost import CostModel, Precision, StepShape, trace_shapes
from llmlab.perf.hardware import Hardware
from llmlab.perf.machine import THIS_MACHINE, Measured, cpu_name

Progress = Callable[[str], None]
_LARGEST_READ = 2**30


@dataclass(frozen=True)
class Ceilings:
    """Measured rates of one device: bytes/s read, FLOP/s by dtype of the operands."""

    device: str
    name: str
    memory: int
    bandwidth: Measured
    flops: dict[str, Measured]

    def entry(self) -> dict[str, Any]:
        """An entry in the form of `data/hardware.yaml`, medians."""
        return {
            "title": self.name,
            "source": f"measured by llmlab calibrate, median of {len(self.bandwidth.samples)}",
            "peak_tflops": {dtype: rate.median / 1e12 for dtype, rate in self.flops.items()},
            "bandwidth_gb_s": self.bandwidth.median / 1e9,
            "memory_gb": self.memory / 1e9,
        }

    def hardware(self) -> Hardware:
        rates = {dtype: rate.median for dtype, rate in self.flops.items()}
        return Hardware(
            THIS_MACHINE, self.name, rates, self.bandwidth.median, self.memory, source="measured"
        )


def measure_ceilings(
    device: str = "cpu", repeats: int = 7, progress: Progress | None = None
) -> Ceilings:
    """Read bandwidth (a large sum) and matrix rate (a large square product), several times each.

    The CPU computes in fp32 whatever weights are stored as; there "fp16" is the product with
    packed 16 bit weights that the engine uses, where this torch has it.
    """
    if repeats < 1:
        raise ValueError(f"repeats = {repeats}: must be a whole number >= 1")
    say = progress or (lambda what: None)
    say("memory bandwidth")
    bandwidth = _bandwidth(device, repeats)
    rates = {}
    for name, product in _products(device).items():
        say(f"matrix rate, {name}")
        n = 2048 if device == "cpu" else 8192
        seconds = _times(product(n), device, repeats)
        rates[name] = Measured(tuple(2 * n**3 / s for s in seconds))
    return Ceilings(device, _device_name(device), _device_memory(device), bandwidth, rates)


def _device_name(device: str) -> str:
    return cpu_name() if device == "cpu" else torch.cuda.get_device_name(device)


def _device_memory(device: str) -> int:
    if device == "cpu":
        return int(psutil.virtual_memory().total)
    return int(torch.cuda.get_device_properties(device).total_memory)


def _bandwidth(device: str, repeats: int) -> Measured:
    """Bytes/s of reading an array far larger than the caches."""
    free = psutil.virtual_memory().available if device == "cpu" else _LARGEST_READ * 8
    count = min(_LARGEST_READ, free // 8) // 4
    data = torch.ones(count, device=device)
    seconds = _times(data.sum, device, repeats)
    return Measured(tuple(4 * count / s for s in seconds))


Product = Callable[[int], Callable[[], Any]]


def _products(device: str) -> dict[str, Product]:
    """By dtype of the weights: a function that prepares a square n x n product to be timed."""

    def plain(dtype: torch.dtype) -> Product:
        def prepare(n: int) -> Callable[[], Any]:
            a = torch.rand(n, n, device=device).to(dtype)
            return lambda: a @ a

        return prepare

    def packed(n: int) -> Callable[[], Any]:
        a = torch.rand(n, n)
        make = half_linear()
        assert make is not None  # asked below
        product = make([a], None)
        return lambda: product(a)

    products = {"fp32": plain(torch.float32)}
    if device != "cpu":
        products |= {"fp16": plain(torch.float16), "bf16": plain(torch.bfloat16)}
    elif half_linear() is not None:
        products["fp16"] = packed
    return products


def _times(run: Callable[[], Any], device: str, repeats: int) -> list[float]:
    """Seconds of each call; two calls first, to fault pages in and to start threads."""
    seconds = []
    for attempt in range(repeats + 2):
        start = time.perf_counter()
        run()
        if device != "cpu":
            torch.cuda.synchronize()
        if attempt >= 2:
            seconds.append(time.perf_counter() - start)
    return seconds


# ---------------------------------------------------------------- real engine steps


@dataclass(frozen=True)
class TimedStep:
    """One real step: what it computed and how long it took."""

    shape: StepShape
    seconds: float


def engine_precision(model: Any) -> Precision:
    """How a loaded model stores its weights and cached keys and values."""
    names = {
        torch.float64: "fp32",  # no 64 bit entry: bytes are then half of the truth
        torch.float32: "fp32",
        torch.float16: "fp16",
        torch.bfloat16: "bf16",
    }
    stored = names[model.dtype]
    return Precision("fp16" if model.packed else stored, names[model.kv_dtype])


def calibration_loads(context: int) -> list[tuple[int, int, int]]:
    """(requests, prompt tokens, output tokens) of each small run: prefills and decodes of many
    widths and context lengths, so that every constant moves some of the durations."""
    loads = [(1, 16, 12), (8, 64, 8), (1, 512, 6), (16, 32, 8), (2, 128, 8), (64, 16, 6)]
    loads += [(4, 256, 8), (32, 32, 6), (2, 900, 6), (16, 128, 6)]
    return [(r, min(p, context - o), o) for r, p, o in loads if context > o + 1]


def time_engine_steps(
    model: Any, budget_s: float = 40.0, progress: Progress | None = None
) -> list[TimedStep]:
    """Run small loads on the real engine and return every step, until the time is used up."""
    from llmlab.engine import Engine
    from llmlab.sched.request import SamplingParams

    say = progress or (lambda what: None)
    context = min(1024, model.config.max_position_embeddings)
    config = EngineConfig(
        max_num_batched_tokens=256, max_num_seqs=64, num_blocks=1024, max_model_len=context
    )
    deadline = time.perf_counter() + budget_s

    def run(requests: int, prompt: int, output: int) -> list[TimedStep]:
        say(f"engine steps, {requests} requests of {prompt} + {output} tokens")
        engine = Engine(model, config)
        for number in range(requests):
            ids = [(7 * number + i) % model.config.vocab_size for i in range(prompt)]
            engine.add(ids, SamplingParams(max_tokens=output, ignore_eos=True))
        while engine.has_work and time.perf_counter() < deadline:
            engine.step()
        shapes = zip(trace_shapes(engine.trace), engine.trace.steps, strict=True)
        return [TimedStep(shape, (step.t_end - step.t_start) / 1e9) for shape, step in shapes]

    run(2, 8, 4)  # warm-up
    steps: list[TimedStep] = []
    for load in calibration_loads(context):
        steps += run(*load)
        if time.perf_counter() >= deadline:
            break
    return steps


def median_by_shape(steps: Sequence[TimedStep]) -> list[TimedStep]:
    """Decode steps of one width and nearly one context together, at their median duration."""
    groups: dict[tuple[int, int, int, int], list[TimedStep]] = {}
    for step in steps:
        s = step.shape
        key = (s.num_tokens, s.num_sampled, s.num_requests, s.kv_read_tokens // 64)
        groups.setdefault(key, []).append(step)
    merged = []
    for group in groups.values():
        ranked = sorted(group, key=lambda step: step.seconds)
        merged.append(ranked[len(ranked) // 2])
    return merged


def cost_model(model: Any) -> CostModel:
    """The cost model of a loaded engine model."""
    return CostModel(model.config, engine_precision(model))

"""Predict a mixed trace of this machine, then run it for real and compare.

    llmlab simulate --truth            after `llmlab calibrate`, on a quiet machine

64 requests, chats and documents scaled to a CPU, four clients in a closed loop. Compared are the
medians of TPOT, TTFT and step duration, beside the spread of repeated real runs: an error below
the spread says nothing.
"""

from __future__ import annotations

from dataclasses import asdict
from statistics import median
from typing import Any

from llmlab.config import EngineConfig
from llmlab.measure.metrics import summarize
from llmlab.measure.workload import Workload, load_workload
from llmlab.sim.simulate import simulate
from llmlab.trace import Trace

CONFIG = EngineConfig(max_num_batched_tokens=256, max_num_seqs=16, max_model_len=2048)
TARGETS = {"tpot_ms": 0.15, "ttft_ms": 0.15, "step_ms": 0.10}


def workload(requests: int) -> Workload:
    """The chat-and-document mix scaled to a CPU, with this many requests."""
    return load_workload("chat_and_documents_cpu").with_(stop={"num_prompts": requests})


def figures(trace: Trace) -> dict[str, float]:
    """Median TPOT and TTFT, all requests and by class, and median step duration, in ms."""
    summary = summarize(trace)
    found: dict[str, float] = {}
    for group in (summary.all, *summary.classes.values()):
        for name in ("tpot", "ttft"):
            key = f"{name}_ms" if group.name == "all" else f"{group.name}.{name}_ms"
            found[key] = group.latencies[name].percentiles["p50"] or 0.0
    found["step_ms"] = median(step.t_end - step.t_start for step in trace.steps) / 1e6
    return found


def measure(requests: int = 64, runs: int = 3, progress: Any = None) -> dict[str, Any]:
    """Prediction, `runs` real runs, errors against their median, and their spread."""
    from llmlab.engine import Engine, load_model
    from llmlab.measure.run import run_workload

    load = workload(requests)
    predicted = figures(
        simulate(load, "smollm2-135m", "this-machine", CONFIG, gpu_memory_utilization=0.5)
    )
    model = load_model("smollm2-135m")
    real = []
    for number in range(runs):
        if progress:
            progress(f"real run {number + 1} of {runs}")
        real.append(figures(run_workload(Engine(model, CONFIG), load, num_warmups=2)))
    middle = {key: median(run[key] for run in real) for key in predicted}
    return {
        "requests": requests,
        "config": asdict(CONFIG),
        "predicted": predicted,
        "measured": middle,
        "error": {key: predicted[key] / middle[key] - 1.0 for key in predicted},
        "spread": {
            key: (max(run[key] for run in real) - min(run[key] for run in real)) / middle[key]
            for key in predicted
        },
        "runs": real,
        "targets": TARGETS,
    }


def table(found: dict[str, Any]) -> str:
    """The comparison as text of at most 80 columns."""
    lines = [
        f"{'median of':<20}{'predicted':>11}{'real':>11}{'error':>9}{'spread':>9}{'target':>9}"
    ]
    for key, predicted in found["predicted"].items():
        target = found["targets"].get(key)
        lines.append(
            f"{key:<20}{predicted:>11.1f}{found['measured'][key]:>11.1f}"
            f"{found['error'][key]:>+9.1%}{found['spread'][key]:>9.1%}"
            f"{'' if target is None else f'{target:.0%}':>9}"
        )
    lines.append(f"{found['requests']} requests, {len(found['runs'])} real runs; spread of these")
    return "\n".join(lines)

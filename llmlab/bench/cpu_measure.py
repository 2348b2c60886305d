"""What `llmlab bench cpu` measures, a function a part; each returns plain JSON values."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

CONTEXT = 128
STEPS = 6
Say = Callable[[str], None]

HELP = "import sys; sys.argv[1:] = ['--help']; from llmlab.cli.main import main; main()"
LOAD_AND_SERVE = """
import json, time
start = time.perf_counter()
from llmlab.engine import load_model
model = load_model()
loaded = time.perf_counter() - start
from llmlab.bench.cpu_measure import mixed_load, peak_memory_mb
from llmlab.bench.cpu_peers import ThisEngine
prompts, outputs = mixed_load(24)
ThisEngine(model).serve(prompts, outputs)
print(json.dumps({"load_s": loaded, "peak_memory_mb": peak_memory_mb()}))
"""
IMPORT = """
import json, sys, time
start = time.perf_counter()
import llmlab
print(json.dumps({"import_llmlab_s": time.perf_counter() - start, "torch": "torch" in sys.modules}))
"""


def peak_memory_mb() -> float:
    """Most memory this process has held; Linux' getrusage would include its parent's."""
    status = Path("/proc/self/status")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines["VmHWM"].split()[0]) * 1024 / 1e6
    import resource

    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def mixed_load(requests: int) -> tuple[list[list[int]], list[int]]:
    """Prompts of 16 to 256 tokens and 8 to 48 tokens of output, the same each time."""
    from llmlab.bench.cpu_peers import prompt

    rng = random.Random(0)
    prompts = [prompt(rng.randint(16, 256), salt) for salt in range(requests)]
    return prompts, [rng.randint(8, 48) for _ in range(requests)]


# ---------------------------------------------------------------- floors


def machine_rates(repeats: int = 3) -> dict[str, Any]:
    """Measured read bandwidth in bytes/s and matrix rates in FLOP/s."""
    from llmlab.perf.calibrate import measure_ceilings

    found = measure_ceilings("cpu", repeats)
    flops = {name: measured.median for name, measured in found.flops.items()}
    return {"read": found.bandwidth.median, "flops": flops}


def best_rates(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """The better of two measurements, before and after: a floor is what the machine can do."""
    flops = {name: max(rate, second["flops"][name]) for name, rate in first["flops"].items()}
    return {"read": max(first["read"], second["read"]), "flops": flops}


def decode_floors(model: Any, rates: dict[str, Any], batches: Sequence[int]) -> dict[str, Any]:
    """Bytes, FLOPs and the least ms of a decode step by batch: max(bytes / read, FLOPs / rate).

    The bytes of the floor are the weights; those of the whole step, with its keys and values, are
    listed beside them.
    """
    from llmlab.perf.cost import CostModel, Precision, step_shape

    best = max(rates["flops"].values())
    steps: dict[str, Any] = {}
    for batch in batches:
        shape = step_shape([(1, CONTEXT - 1, True)] * batch)
        row: dict[str, float] = {}
        for dtype in ("fp32", "fp16"):
            cost = CostModel(model.config, Precision(weights=dtype, kv=dtype)).cost(shape)
            weights = sum(cost.parts[p].bytes for p in ("projections", "mlp", "head"))
            row |= {
                f"{dtype}_ms": max(weights / rates["read"], cost.flops / best) * 1e3,
                f"{dtype}_bytes": cost.bytes,
            }
        steps[str(batch)] = row | {"flops": cost.flops}
    return {
        "read_gb_s": rates["read"] / 1e9,
        "matrix_gflops": {name: rate / 1e9 for name, rate in rates["flops"].items()},
        "decode_step": steps,
    }


def prefill_floors(model: Any, rates: dict[str, Any], lengths: Sequence[int]) -> dict[str, Any]:
    """The most tokens/s of a prompt of each length at the best matrix rate."""
    from llmlab.perf.cost import CostModel, Precision, step_shape

    cost, best = CostModel(model.config, Precision("fp32", "fp32")), max(rates["flops"].values())
    return {
        "prefill_matrix_gflops": {name: rate / 1e9 for name, rate in rates["flops"].items()},
        "prefill_tokens_per_s": {
            str(n): n * best / cost.cost(step_shape([(n, 0, True)])).flops for n in lengths
        },
    }


# ---------------------------------------------------------------- decode, prefill, serving


def measure_decode(
    peers: Sequence[Any], batches: Sequence[int], rounds: int, say: Say
) -> dict[str, Any]:
    """Median ms of a decode step by engine and batch, all of them in turn in every round."""
    seconds: dict[str, dict[str, list[float]]] = {p.name: {} for p in peers}
    for number in range(rounds):
        for batch in batches:
            say(f"decode, round {number + 1} of {rounds}, batch {batch}")
            for peer in peers:
                took = peer.decode_steps(batch, CONTEXT, STEPS)
                seconds[peer.name].setdefault(str(batch), []).extend(took)
    return {
        name: {batch: median(values) * 1e3 for batch, values in by_batch.items()}
        for name, by_batch in seconds.items()
    }


def measure_prefill(
    peers: Sequence[Any], lengths: Sequence[int], rounds: int, say: Say
) -> dict[str, Any]:
    """Median tokens/s of a whole prompt by engine and length."""
    rates: dict[str, dict[str, list[float]]] = {p.name: {} for p in peers}
    for number in range(rounds):
        for tokens in lengths:
            say(f"prefill, round {number + 1} of {rounds}, {tokens} tokens")
            for peer in peers:
                rate = tokens / peer.prefill_seconds(tokens)
                rates[peer.name].setdefault(str(tokens), []).append(rate)
    return {
        name: {tokens: median(values) for tokens, values in by_length.items()}
        for name, by_length in rates.items()
    }


def measure_serving(ours: Any, others: Sequence[Any], requests: int, say: Say) -> dict[str, Any]:
    """A burst of mixed requests: requests per second of each, latencies of this engine."""
    from llmlab.measure.metrics import summarize, vllm_keys

    prompts, outputs = mixed_load(requests)
    rates = {}
    for peer in [ours, *others]:
        say(f"serving {requests} requests, {peer.name}")
        rates[peer.name] = requests / peer.serve_seconds(prompts, outputs)
    keys = vllm_keys(summarize(ours.serve(prompts, outputs)))
    wanted = ("median_ttft_ms", "p99_ttft_ms", "median_itl_ms", "p99_itl_ms")
    return {
        "requests": requests,
        "requests_per_s": rates,
        **{key: keys[key] for key in wanted if key in keys},
    }


# ---------------------------------------------------------------- starting


def measure_startup(say: Say) -> dict[str, float]:
    """Seconds of imports, help, loading and a notebook's first cell; peak memory in MB.

    Each in a process of its own, for the second time: the first warms the disk.
    """
    say("import, --help and loading, each in a fresh process")
    found: dict[str, float] = {}
    for _ in range(2):
        found |= _printed(IMPORT)
        found["help_s"] = _wall(HELP)
        found |= loaded_and_served()
        found["first_cell_s"] = _wall(first_cell())
    found["import_needs_torch"] = bool(found.pop("torch"))
    return found


def loaded_and_served() -> dict[str, float]:
    """Seconds to import and load, and peak memory in MB of serving the burst, in a new process."""
    return _printed(LOAD_AND_SERVE)


def first_cell() -> str:
    """The first code of lab 01: it imports the lab's parts and loads the model."""
    from llmlab.data import labs_path

    notebook = json.loads(next(labs_path().glob("01_*.ipynb")).read_text(encoding="utf-8"))
    return next("".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code")


def _wall(code: str) -> float:
    start = time.perf_counter()
    _run(code)
    return time.perf_counter() - start


def _printed(code: str) -> dict[str, float]:
    result: dict[str, float] = json.loads(_run(code).splitlines()[-1])
    return result


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"a fresh process failed: {done.stderr.strip()[-500:]}")
    return done.stdout

"""This engine and its peers on the CPU, on the same weights, beside the machine's floors.

    llmlab bench cpu                      a table
    llmlab bench cpu --json               {"decode_ms": {engine: {batch: ms}}, ...}
    llmlab bench cpu --batches 1,16 --peers none --rounds 3

Engines take turns within each round, and the median over the rounds counts, so that a machine
that grows slower meanwhile slows all of them. Floors are measured in the same run: a step can be
no faster than reading its weights once, nor than its products at the best matrix rate seen.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

CONTEXT = 128
STEPS = 6
PREFILL = (32, 128, 512, 2048)
BATCHING_HELP = "batches at which transformers' continuous batching runs too"
LOAD_AND_SERVE = """
import json, time
start = time.perf_counter()
from llmlab.engine import load_model
model = load_model()
loaded = time.perf_counter() - start
from llmlab.bench.cpu import mixed_load
from llmlab.bench.cpu_peers import ThisEngine
prompts, outputs = mixed_load(24)
ThisEngine(model).serve(prompts, outputs)
from llmlab.bench.cpu import peak_memory_mb
print(json.dumps({"load_s": loaded, "peak_memory_mb": peak_memory_mb()}))
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


def floors(model: Any, batches: Sequence[int], repeats: int = 3) -> dict[str, Any]:
    """Measured rates, and what follows: the least ms of a decode step and of a prefill."""
    from llmlab.perf.calibrate import measure_ceilings
    from llmlab.perf.cost import CostModel, Precision, step_shape

    ceilings = measure_ceilings("cpu", repeats)
    bandwidth = ceilings.bandwidth.median
    rate = max(measured.median for measured in ceilings.flops.values())
    steps: dict[str, Any] = {}
    for batch in batches:
        shape = step_shape([(1, CONTEXT - 1, True)] * batch)
        row: dict[str, float] = {}
        for dtype in ("fp32", "fp16"):
            cost = CostModel(model.config, Precision(weights=dtype, kv="fp32")).cost(shape)
            weights = sum(cost.parts[p].bytes for p in ("projections", "mlp", "head"))
            row |= {
                f"{dtype}_ms": max(weights / bandwidth, cost.flops / rate) * 1e3,
                f"{dtype}_bytes": cost.bytes,
            }
        steps[str(batch)] = row | {"flops": cost.flops}
    whole = CostModel(model.config, Precision(weights="fp32", kv="fp32"))
    return {
        "read_gb_s": bandwidth / 1e9,
        "matrix_gflops": {name: m.median / 1e9 for name, m in ceilings.flops.items()},
        "decode_step": steps,
        "prefill_tokens_per_s": {
            str(n): n * rate / whole.cost(step_shape([(n, 0, True)])).flops for n in PREFILL
        },
    }


def measure_decode(peers: Sequence[Any], batches: Sequence[int], rounds: int) -> dict[str, Any]:
    """Median ms of a decode step by engine and batch, all of them in turn in every round."""
    seconds: dict[str, dict[str, list[float]]] = {p.name: {} for p in peers}
    for _ in range(rounds):
        for batch in batches:
            for peer in peers:
                took = peer.decode_steps(batch, CONTEXT, STEPS)
                seconds[peer.name].setdefault(str(batch), []).extend(took)
    return {
        name: {batch: median(values) * 1e3 for batch, values in by_batch.items()}
        for name, by_batch in seconds.items()
    }


def measure_prefill(peers: Sequence[Any], lengths: Sequence[int], rounds: int) -> dict[str, Any]:
    """Median tokens/s of a whole prompt by engine and length."""
    rates: dict[str, dict[str, list[float]]] = {p.name: {} for p in peers}
    for _ in range(rounds):
        for tokens in lengths:
            for peer in peers:
                rate = tokens / peer.prefill_seconds(tokens)
                rates[peer.name].setdefault(str(tokens), []).append(rate)
    return {
        name: {tokens: median(values) for tokens, values in by_length.items()}
        for name, by_length in rates.items()
    }


def measure_serving(ours: Any, others: Sequence[Any], requests: int) -> dict[str, Any]:
    """A burst of mixed requests: requests per second of each, latencies of this engine."""
    from llmlab.measure.metrics import summarize, vllm_keys

    prompts, outputs = mixed_load(requests)
    keys = vllm_keys(summarize(ours.serve(prompts, outputs)))
    wanted = ("median_ttft_ms", "p99_ttft_ms", "median_itl_ms", "p99_itl_ms")
    rates = {p.name: requests / p.serve_seconds(prompts, outputs) for p in [ours, *others]}
    return {
        "requests": requests,
        "requests_per_s": rates,
        **{key: keys[key] for key in wanted if key in keys},
    }


def ratios(result: dict[str, Any]) -> dict[str, Any]:
    """This engine's time over a floor's or a peer's; below 1 is faster."""
    ours = result["decode_ms"]["llmlab"]
    steps = result["floors"]["decode_step"]
    out: dict[str, Any] = {
        "decode_over_fp32_floor": {b: ours[b] / steps[b]["fp32_ms"] for b in ours},
        "decode_over_fp16_floor": {b: ours[b] / steps[b]["fp16_ms"] for b in ours},
    }
    for name, by_batch in result["decode_ms"].items():
        if name != "llmlab":
            out[f"decode_over_{name}"] = {b: ours[b] / ms for b, ms in by_batch.items()}
    best = result["floors"]["prefill_tokens_per_s"]
    prefill = result["prefill_tokens_per_s"]["llmlab"]
    out["prefill_over_floor"] = {n: best[n] / rate for n, rate in prefill.items()}
    out["paged_over_contiguous"] = {
        b: ms["paged"] / ms["contiguous"] for b, ms in result["forward_ms"].items()
    }
    rates = result["serving"]["requests_per_s"]
    for name, rate in rates.items():
        if name != "llmlab":
            out[f"serving_time_over_{name}"] = rate / rates["llmlab"]
    return out


def load_and_peak() -> dict[str, float]:
    """Seconds to import and load, and peak memory in MB after serving, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD_AND_SERVE], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"loading in a fresh process failed: {done.stderr.strip()[-500:]}")
    result: dict[str, float] = json.loads(done.stdout)
    return result


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Everything, as one JSON object."""
    import torch

    from llmlab.bench.cpu_forward import forward_ms
    from llmlab.bench.cpu_peers import (
        ThisEngine,
        TransformersBatching,
        TransformersGenerate,
        absent_peers,
        transformers_model,
    )
    from llmlab.engine import load_model
    from llmlab.perf.machine import cpu_name

    model = load_model()
    ours = ThisEngine(model)
    peers: list[Any] = [ours]
    batching: list[Any] = []
    absent = absent_peers()
    if options.peers == "none":
        absent = dict.fromkeys(("transformers", *absent), "left out (--peers none)")
    elif "transformers" not in absent:
        theirs = transformers_model()
        peers.append(TransformersGenerate(theirs))
        batching.append(TransformersBatching(theirs))
    result: dict[str, Any] = {
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "model": model.config.name,
        "packed_fp16_weights": model.packed,
        "context": CONTEXT,
        "rounds": options.rounds,
        "floors": floors(model, options.batches),
        "decode_ms": measure_decode(peers, options.batches, options.rounds),
        "forward_ms": {str(b): forward_ms(model, b, CONTEXT) for b in options.batches},
        "prefill_tokens_per_s": measure_prefill(peers, options.prefill, options.rounds),
        "absent": absent,
    }
    small = [b for b in options.batches if b in options.batching]
    if batching and small:
        result["decode_ms"] |= measure_decode(batching, small, 1)
    result["serving"] = measure_serving(ours, batching, options.requests)
    result["ratios"] = ratios(result)
    return result | load_and_peak()


def table(result: dict[str, Any]) -> str:
    """The result for a reader, at most 80 columns."""
    lines = [
        f"{result['cpu']}, {result['threads']} threads, torch {result['torch']}",
        f"read {result['floors']['read_gb_s']:.1f} GB/s; products "
        + ", ".join(f"{k} {v:.0f} GFLOP/s" for k, v in result["floors"]["matrix_gflops"].items()),
        "",
        f"decode step at context {result['context']}, ms by batch",
    ]
    batches = list(result["decode_ms"]["llmlab"])
    rows = {**result["decode_ms"]}
    for dtype in ("fp32", "fp16"):
        steps = result["floors"]["decode_step"]
        rows[f"floor, {dtype} weights"] = {b: steps[b][f"{dtype}_ms"] for b in batches}
    rows["attention alone"] = {
        b: ms["paged"] - ms["without attention"] for b, ms in result["forward_ms"].items()
    }
    lines.append(f"{'':<32}" + "".join(f"{b:>7}" for b in batches))
    for name, row in rows.items():
        cells = "".join(f"{row[b]:>7.1f}" if b in row else f"{'-':>7}" for b in batches)
        lines.append(f"{name:<32}{cells}")
    lines += ["", "prefill, tokens/s by prompt length"]
    lengths = list(result["prefill_tokens_per_s"]["llmlab"])
    lines.append(f"{'':<32}" + "".join(f"{n:>7}" for n in lengths))
    floor = {"floor": result["floors"]["prefill_tokens_per_s"]}
    for name, row in (result["prefill_tokens_per_s"] | floor).items():
        lines.append(f"{name:<32}" + "".join(f"{row[n]:>7.0f}" for n in lengths))
    lines += ["", f"a burst of {result['serving']['requests']} requests, requests/s"]
    for name, rate in result["serving"]["requests_per_s"].items():
        lines.append(f"{name:<32}{rate:>7.2f}")
    lines.append(f"{'load (import and model), s':<32}{result['load_s']:>7.2f}")
    lines.append(f"{'peak memory while serving, MB':<32}{result['peak_memory_mb']:>7.0f}")
    lines += [f"{name}: {why}" for name, why in result["absent"].items()]
    return "\n".join(lines)


def _numbers(text: str) -> list[int]:
    try:
        values = [int(part) for part in text.split(",") if part]
    except ValueError:
        values = []
    if not values or min(values) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be whole numbers >= 1, like 1,4,16")
    return values


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="llmlab bench cpu",
        description="This engine and its peers on the CPU, beside the machine's floors.",
        epilog="example: llmlab bench cpu --batches 1,16 --peers none --json",
    )
    parser.add_argument("--batches", type=_numbers, default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--prefill", type=_numbers, default=list(PREFILL))
    parser.add_argument("--batching", type=_numbers, default=[1, 4, 16], help=BATCHING_HELP)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=24, help="of the burst")
    parser.add_argument("--peers", choices=("all", "none"), default="all")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--out", type=Path, help="write the JSON there too")
    options = parser.parse_args(argv)
    if options.rounds < 1 or options.requests < 1:
        parser.error("--rounds and --requests must be at least 1")
    if unknown := [n for n in options.prefill if n not in PREFILL]:
        parser.error(f"--prefill {unknown[0]}: must be among {PREFILL}")
    try:
        result = measure(options)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result) if options.json else table(result))
    return 0

"""This engine and its peers on the CPU, on the same weights, beside the machine's floors.

    llmlab bench cpu                a table
    llmlab bench cpu --json         {"decode_ms": {engine: {batch: ms}}, ...}
    llmlab bench cpu --batches 1,16 --peers none --rounds 3
    llmlab bench cpu --parts decode --out cpu.json     one part now, more later
    llmlab bench cpu --parts prefill,serving --out cpu.json --plot cpu.svg

Engines take turns within each round, in one process, and the median over the rounds counts, so
that a machine that grows slower meanwhile slows all of them. Floors are measured in the same run,
before and after: a step can be no faster than reading its weights once, nor than its products at
the best matrix rate seen.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from llmlab.bench.command import at_least_one, command, deliver
from llmlab.bench.cpu_measure import (
    CONTEXT,
    Say,
    best_rates,
    decode_floors,
    machine_rates,
    measure_decode,
    measure_prefill,
    measure_serving,
    measure_startup,
    prefill_floors,
)
from llmlab.bench.cpu_report import PEERS, ratios, table, targets

PREFILL = (32, 128, 512, 2048)
PARTS = ("decode", "prefill", "serving", "startup")
BATCHING_HELP = "batches at which transformers' continuous batching runs too"


def measure(options: argparse.Namespace, say: Say) -> dict[str, Any]:
    """The parts asked for, as one JSON object; what `--out` holds of other parts stays."""
    import torch

    from llmlab.bench.cpu_forward import forward_ms
    from llmlab.bench.cpu_peers import ThisEngine, open_peers
    from llmlab.engine import load_model
    from llmlab.perf.machine import cpu_name

    here = {"cpu": cpu_name(), "threads": torch.get_num_threads(), "torch": torch.__version__}
    result = earlier(options.out, here) | here
    if "startup" in options.parts:  # first: a process of its own, while this one is small
        result |= measure_startup(say)
    say("loading the engines")
    model = load_model()
    ours = ThisEngine(model)
    decoding, serving, absent = open_peers(options.peers)
    result |= {
        "model": model.config.name,
        "packed_fp16_weights": model.packed,
        "kv_cache_dtype": str(model.kv_dtype).removeprefix("torch."),
        "context": CONTEXT,
        "rounds": options.rounds,
        "absent": absent,
    }
    floors = result.setdefault("floors", {})
    if "decode" in options.parts:
        say("floors")
        rates = machine_rates()
        result["decode_ms"] = measure_decode(
            [ours, *decoding], options.batches, options.rounds, say
        )
        say("attention apart")
        result["forward_ms"] = {str(b): forward_ms(model, b, CONTEXT) for b in options.batches}
        rates = best_rates(rates, machine_rates())
        floors |= decode_floors(model, rates, options.batches)
        small = [b for b in options.batches if b in options.batching]
        if serving and small:
            result["decode_ms"] |= measure_decode(serving, small, 1, say)
    if "prefill" in options.parts:
        rates = machine_rates()
        result["prefill_tokens_per_s"] = measure_prefill(
            [ours, *decoding], options.prefill, options.rounds, say
        )
        floors |= prefill_floors(model, best_rates(rates, machine_rates()), options.prefill)
    if "serving" in options.parts:
        result["serving"] = measure_serving(ours, serving, options.requests, say)
    result["ratios"] = ratios(result)
    result["targets"] = targets(result)
    return result


def earlier(out: Path | None, here: dict[str, Any]) -> dict[str, Any]:
    """What an earlier run left in `out`, so that its parts can be measured one at a time.

    {} if it ran elsewhere: figures of another cpu, torch or number of threads (`here`) say nothing.
    """
    if out is None or not out.exists():
        return {}
    try:
        found = json.loads(out.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"--out {out}: is there and is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"--out {out}: is there and is no result of this benchmark")
    return found if here.items() <= found.items() else {}


def _numbers(text: str) -> list[int]:
    try:
        values = [int(part) for part in text.split(",") if part]
    except ValueError:
        values = []
    if not values or min(values) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be whole numbers >= 1, like 1,4,16")
    return values


def _names(text: str, known: tuple[str, ...]) -> list[str]:
    if text in ("all", "none"):
        return list(known) if text == "all" else []
    names = text.split(",")
    if unknown := [n for n in names if n not in known]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r}: must be among {', '.join(known)}")
    return names


def parser() -> argparse.ArgumentParser:
    options = command("cpu", __doc__)
    add = options.add_argument
    add(
        "--parts",
        type=lambda text: _names(text, PARTS),
        default=list(PARTS),
        help="of decode,prefill,serving,startup; others stay as --out holds them of this machine",
    )
    add(
        "--peers",
        type=lambda text: _names(text, PEERS),
        default=list(PEERS),
        help="all, none, or of transformers,llama.cpp",
    )
    add("--batches", type=_numbers, default=[1, 2, 4, 8, 16, 32, 64])
    add("--prefill", type=_numbers, default=list(PREFILL), help="prompt lengths")
    add("--batching", type=_numbers, default=[1, 4, 16], help=BATCHING_HELP)
    add("--rounds", type=at_least_one, default=3)
    add("--requests", type=at_least_one, default=24, help="of the burst")
    add("--plot", type=Path, help="write a figure there, as SVG")
    return options


def main(argv: list[str]) -> int:
    """Print the figures; 0, or 2 for input that cannot be used."""
    given = parser()
    options = given.parse_args(argv)
    if max(options.prefill) > 4000:
        given.error(f"--prefill {max(options.prefill)}: must be at most 4000")
    try:
        result = measure(options, lambda what: print(what, file=sys.stderr, flush=True))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    code = deliver(options, result, table)
    if options.plot and "decode_ms" in result:
        from llmlab.bench.cpu_plot import draw

        options.plot.write_text(draw(result), encoding="utf-8")
    return code

"""What the figures of `llmlab bench cpu` come to: ratios, targets met or not, a table."""

from __future__ import annotations

from typing import Any

OURS = "llmlab"
BATCHING = "transformers continuous batching"
PEERS = ("transformers", "llama.cpp")


def short(name: str) -> str:
    """A peer's name as it fits a table's column and a figure's margin."""
    return name.replace("continuous batching", "batching")


def ratios(result: dict[str, Any]) -> dict[str, Any]:
    """This engine's time over a floor's or a peer's; below 1 is faster. Of what was measured."""
    out: dict[str, Any] = {}
    if "decode_ms" in result:
        ours, steps = result["decode_ms"][OURS], result["floors"]["decode_step"]
        for dtype in ("fp32", "fp16"):
            out[f"decode_over_{dtype}_floor"] = {b: ours[b] / steps[b][f"{dtype}_ms"] for b in ours}
        for name, by_batch in result["decode_ms"].items():
            if name != OURS:
                both = {b: ours[b] / ms for b, ms in by_batch.items() if b in ours}
                out[f"decode_over_{name}"] = both
        out["paged_over_contiguous"] = {
            b: ms["paged"] / ms["contiguous"] for b, ms in result["forward_ms"].items()
        }
    if "prefill_tokens_per_s" in result:
        best = result["floors"]["prefill_tokens_per_s"]
        prefill = result["prefill_tokens_per_s"][OURS]
        out["prefill_over_floor"] = {n: best[n] / rate for n, rate in prefill.items()}
        for name, rates in result["prefill_tokens_per_s"].items():
            if name != OURS:
                both = {n: rate / prefill[n] for n, rate in rates.items() if n in prefill}
                out[f"prefill_over_{name}"] = both
    if "serving" in result:
        rates = result["serving"]["requests_per_s"]
        for name, rate in rates.items():
            if name != OURS:
                out[f"serving_time_over_{name}"] = rate / rates[OURS]
    return out


# What a laptop without a GPU should reach: (ratio or figure, at, at most).
ALL = ("1", "2", "4", "8", "16", "32", "64")
TARGETS: tuple[tuple[str, tuple[str, ...], float], ...] = (
    ("decode_over_llama.cpp F32", ALL, 1.0),
    ("decode_over_transformers", ALL, 0.6),
    ("decode_over_llama.cpp Q4_1", ("16", "32", "64"), 1.0),
    ("decode_over_fp32_floor", ("1", "2", "4"), 1.6),
    ("decode_over_fp32_floor", ("16",), 1.9),
    ("decode_over_fp32_floor", ("32", "64"), 1.6),
    ("prefill_over_floor", ("512",), 1.25),
    ("paged_over_contiguous", ALL, 1.1),
    (f"serving_time_over_{BATCHING}", (), 0.5),
    ("load_s", (), 4.0),
    ("peak_memory_mb", (), 700.0),
    ("import_llmlab_s", (), 0.3),
    ("help_s", (), 0.5),
    ("first_cell_s", (), 6.0),
)


def targets(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Each target with the worst value of this run, and whether it is met."""
    rows = []
    for name, at, limit in TARGETS:
        found = result["ratios"].get(name, result.get(name))
        if isinstance(found, dict):
            values = [found[key] for key in at if key in found]
            found = max(values) if values else None
        if found is not None:
            label = f"{name} at {', '.join(at)}" if at else name
            rows.append({"target": label, "limit": limit, "got": found, "met": found <= limit})
    return rows


def table(result: dict[str, Any]) -> str:
    """The result for a reader, at most 80 columns."""
    lines = [f"{result['cpu']}, {result['threads']} threads, torch {result['torch']}"]
    if "decode_ms" in result:
        lines += _decode(result)
    if "prefill_tokens_per_s" in result:
        shown = result["prefill_tokens_per_s"]
        lengths = list(shown[OURS])
        lines += ["", "prefill, tokens/s by prompt length"]
        floor = {"floor": result["floors"]["prefill_tokens_per_s"]}
        lines += _grid(shown | floor, lengths, "7.0f")
    if "serving" in result:
        serving = result["serving"]
        lines += ["", f"a burst of {serving['requests']} mixed requests, requests/s"]
        lines += [f"{name:<32}{rate:>7.2f}" for name, rate in serving["requests_per_s"].items()]
        for key in ("ttft", "itl"):
            if f"median_{key}_ms" in serving:
                p50, p99 = serving[f"median_{key}_ms"], serving[f"p99_{key}_ms"]
                lines.append(
                    f"{OURS + ' ' + key.upper() + ', p50 and p99, ms':<32}{p50:>7.0f}{p99:>7.0f}"
                )
    starting = {
        "load_s": ("load (import and model), s", "7.2f"),
        "peak_memory_mb": ("peak memory while serving, MB", "7.0f"),
        "import_llmlab_s": ("import llmlab, s", "7.2f"),
        "help_s": ("llmlab --help, s", "7.2f"),
        "first_cell_s": ("first cell of lab 01, s", "7.2f"),
    }
    lines += [""] * any(key in result for key in starting)
    lines += [
        f"{what:<32}{result[k]:>{form}}" for k, (what, form) in starting.items() if k in result
    ]
    if rows := targets(result):
        lines += ["", "targets (as ratios, below 1 is faster)"]
    for row in rows:
        mark = "met" if row["met"] else "NOT met"
        lines.append(f"{row['target'][:55]:<56}{row['got']:>7.2f} of {row['limit']:<5g} {mark}")
    lines += [f"{name}: {why}" for name, why in result["absent"].items()]
    return "\n".join(lines)


def _decode(result: dict[str, Any]) -> list[str]:
    floors, forward = result["floors"], result["forward_ms"]
    rates = ", ".join(f"{k} {v:.0f} GFLOP/s" for k, v in floors["matrix_gflops"].items())
    lines = [f"read {floors['read_gb_s']:.1f} GB/s; products {rates}", ""]
    lines.append(f"decode step at context {result['context']}, ms by batch")
    batches, steps = list(result["decode_ms"][OURS]), floors["decode_step"]
    rows = dict(result["decode_ms"])
    for dtype in ("fp32", "fp16"):
        rows[f"floor, {dtype} weights"] = {b: steps[b][f"{dtype}_ms"] for b in batches}
    rows["attention alone"] = {
        b: ms["paged"] - ms["without attention"] for b, ms in forward.items()
    }
    if all("flops" in steps[b] for b in batches):
        rows["GFLOP a step"] = {b: steps[b]["flops"] / 1e9 for b in batches}
        rows["MB a step, fp16 weights"] = {b: steps[b]["fp16_bytes"] / 1e6 for b in batches}
    return lines + _grid(rows, batches, "7.1f")


def _grid(rows: dict[str, dict[str, float]], columns: list[str], form: str) -> list[str]:
    lines = [f"{'':<31}" + "".join(f"{c:>7}" for c in columns)]
    for name, row in rows.items():
        cells = "".join(f"{row[c]:>{form}}" if c in row else f"{'-':>7}" for c in columns)
        lines.append(f"{short(name)[:31]:<31}{cells}")
    return lines

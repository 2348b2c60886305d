"""The GPU benchmark's result as Markdown, and each target beside what was measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Row = dict[str, Any]


def _ok(result: Row, section: str, keep: Callable[[Row], bool] = lambda row: True) -> list[Row]:
    rows = result["sections"].get(section, {}).get("rows", [])
    return [row for row in rows if row.get("status") == "ok" and keep(row)]


def _extreme(pick: Any, rows: list[Row], key: str) -> float | None:
    """min or max of what was measured; None if nothing was."""
    values = [row[key] for row in rows if row.get(key) is not None]
    return float(pick(values)) if values else None


def targets(result: Row) -> list[Row]:
    """Each target with the worst measured value; `met` is None where nothing was measured.

    Every rival and every cell counts: the smallest share, the largest multiple of a floor.
    """
    large = _ok(result, "decode_attention", lambda r: r["batch"] >= 32 and r["context"] >= 4096)
    chunks = _ok(
        result, "prefill_attention", lambda r: r["context"] >= 4096 and "1B" not in r["shape"]
    )
    peers = _ok(result, "transformers", lambda r: "continuous" in r["system"])
    steps, rivals = _ok(result, "decode_step"), _ok(result, "flashinfer")
    # name, sense, limit, rows, key; ">=" looks at the smallest value, "<=" at the largest
    found: list[tuple[str, str, float, list[Row], str]] = [
        ("decode attention from 32 x 4k on: share of read rate", ">=", 0.85, large, "share"),
        ("prefill attention from 4k on, D 128: share of matrix rate", ">=", 0.6, chunks, "share"),
        ("decode step: multiple of byte and node floor", "<=", 1.25, steps, "of_floor"),
        ("multiple of transformers' continuous batching", ">=", 2.0, peers, "ratio"),
        ("decode attention: speed beside FlashInfer's", ">=", 0.9, rivals, "flashinfer_speed"),
    ]
    rows = []
    for name, sense, limit, cells, key in found:
        pick = min if sense == ">=" else max
        value = None if result.get("tiny") else _extreme(pick, cells, key)
        met = None if value is None else value >= limit if sense == ">=" else value <= limit
        rows.append({"target": name, "sense": sense, "limit": limit, "value": value, "met": met})
    return rows


_TIMES = "status median_us p10_us p90_us "
_PEER = "share sdpa_us sdpa_speed error"
COLUMNS = {
    "ceilings": "name text p10_us median_us p90_us rounds",
    "decode_attention": "shape batch context " + _TIMES + _PEER,
    "prefill_attention": "shape queries context " + _TIMES + _PEER,
    "decode_step": "model batch context " + _TIMES + "graph byte_floor_us of_byte_floor nodes "
    "floor_us of_floor tokens_per_s",
    "overlap": "model batch async_scheduling " + _TIMES + "device_us device_share tokens_per_s",
    "serving": "prefill async_scheduling status ttft_p50_ms itl_p50_ms itl_p99_ms itl_max_ms "
    "output_tokens_per_s",
    "small_kernels": "kernel shape tokens " + _TIMES + "share error",
    "gemm": "kernel shape tokens " + _TIMES + "share weight_read_share",
    "prefill": "model tokens " + _TIMES + "tokens_per_s share",
    "transformers": "system status output_tokens_per_s ratio",
    "flashinfer": "shape batch context " + _TIMES + "flashinfer_us flashinfer_speed",
}


def as_markdown(result: Row) -> str:
    """Machine, targets, then one table a section."""
    card = result["card"] or "no card"
    lines = [f"# GPU benchmark: {card}", ""]
    if result["tiny"]:
        lines += ["Toy sizes: this run proves the command and measures nothing.", ""]
    keys = ("device", "driver", "cuda", "torch", "triton", "transformers", "flashinfer", "python")
    lines += [", ".join(f"{key} {result[key]}" for key in keys if result.get(key)), ""]
    lines += table(result["targets"], "target sense limit value met")
    for name, section in result["sections"].items():
        title = name.replace("_", " ").capitalize()
        lines += ["", f"## {title} ({section['status']}, {section['seconds']} s)", ""]
        lines += table(section["rows"], COLUMNS[name])
    return "\n".join(lines) + "\n"


def table(rows: list[Row], columns: str) -> list[str]:
    """A Markdown table of the columns that any row has."""
    used = [c for c in columns.split() if any(row.get(c) is not None for row in rows)]
    if not used:
        return ["(no rows)"]
    lines = ["| " + " | ".join(used) + " |", "|" + "---|" * len(used)]
    return lines + ["| " + " | ".join(_cell(row.get(c)) for c in used) + " |" for row in rows]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return str(value)

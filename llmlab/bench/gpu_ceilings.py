"""What the card can do at most, measured the same way as everything that is compared with it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from llmlab.bench.gpu_timing import Bench, measure
from llmlab.kernels.launch import Launch, empty_kernel

Row = dict[str, Any]


def run(bench: Bench) -> Iterator[Row]:
    """Copy and read rate, matrix rate, and the cost of a graph node that does nothing."""
    count = 2**18 if bench.tiny else 2**30
    source = torch.randn(count // 4, device=bench.device)
    target = torch.empty_like(source)
    yield _rate(bench, "copy", partial(target.copy_, source), 2 * count, "GB/s")
    yield _rate(bench, "read", partial(torch.sum, source), count, "GB/s")
    del source, target
    for size in (64,) if bench.tiny else (4096, 8192):
        a, b = bench.randn(size, size), bench.randn(size, size)
        product = partial(torch.mm, a, b, out=torch.empty_like(a))
        yield _rate(bench, "gemm", product, 2 * size**3, "TFLOP/s", size)
    nodes = 8 if bench.tiny else 256
    launch = Launch(empty_kernel, (1,), {}, {}, num_warps=1)
    timing = measure(bench, {"node": [launch.run] * nodes})["node"]
    yield {
        "name": "node",
        "value": timing.median,
        "text": f"{timing.median * 1e6:.2f} us a node, graph of {nodes} empty kernels",
        **timing.as_row(),
    }


def _rate(
    bench: Bench, name: str, call: Any, amount: float, unit: str, size: int | None = None
) -> Row:
    timing = measure(bench, {name: [call]})[name]
    rate = amount / timing.median
    scale = 1e12 if unit == "TFLOP/s" else 1e9
    text = f"{rate / scale:.0f} {unit}" + (f" at {size}^3" if size else "")
    return {"name": name, "value": rate, "text": text, **timing.as_row()}


def ceilings_of(rows: list[Row]) -> dict[str, float]:
    """The best rate of each name; the node is a time."""
    best: dict[str, float] = {}
    for row in rows:
        if "value" in row:
            best[row["name"]] = max(best.get(row["name"], 0.0), row["value"])
    return best

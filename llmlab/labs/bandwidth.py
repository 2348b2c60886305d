"""What a decode attention achieves: the bytes it must move, over the time it takes.

Everything is measured on the machine at hand. The keys and values rotate through several layers'
caches, far more than fit into a processor's own cache, as they do in a model.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from llmlab.engine.attention import Attention
from llmlab.engine.batch import Batch, make_batch
from llmlab.perf.machine import Measured, cpu_name
from llmlab.viz.figures.achieved_rate import achieved_rate
from llmlab.viz.live import Progress
from llmlab.viz.show import Shown, live_figure, shown_table

PAGE = 16


@dataclass(frozen=True)
class Shape:
    """Heads of an attention: query heads, KV heads, values a head."""

    heads: int
    kv_heads: int
    dim: int


@dataclass(frozen=True)
class Achieved:
    """One attention on one batch. bytes: what it must move at least; seconds: of each call."""

    name: str
    batch: int
    context: int
    bytes: float
    seconds: Measured

    @property
    def rate(self) -> float:
        """Bytes/s at the median."""
        return self.bytes / self.seconds.median


def must_move(contexts: list[int], kv_heads: int, head_dim: int, bytes_per_value: float) -> float:
    """Bytes of keys and values that one layer's decode attention reads: every context, once."""
    return 2 * sum(contexts) * kv_heads * head_dim * bytes_per_value


def device_name(device: str) -> str:
    """Of the processor, or of the card."""
    return cpu_name() if device == "cpu" else torch.cuda.get_device_name(device)


def time_calls(run: Callable[[int], object], device: str, repeats: int) -> Measured:
    """Seconds of run(0), run(1), ...; three calls first, to start threads and fault pages in."""
    for number in range(3):
        run(number)
    if device != "cpu":
        return _time_on_card(run, repeats)
    seconds = []
    for number in range(repeats):
        start = time.perf_counter()
        run(number)
        seconds.append(time.perf_counter() - start)
    return Measured(tuple(seconds))


def _time_on_card(run: Callable[[int], object], repeats: int) -> Measured:
    """By the card's own clock: what the host needs to launch is not in it if the card is busy."""
    marks: list[Any] = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]  # type: ignore[no-untyped-call]
    marks[0].record()
    for number in range(repeats):
        run(number)
        marks[number + 1].record()
    torch.cuda.synchronize()
    return Measured(tuple(a.elapsed_time(b) / 1e3 for a, b in pairwise(marks)))


def copy_rate(device: str = "cpu", mib: int = 512, repeats: int = 7) -> Measured:
    """Bytes/s of a large copy, bytes read and bytes written both counted."""
    source = torch.ones(mib * 2**18, device=device)
    target = torch.empty_like(source)
    seconds = time_calls(lambda _: target.copy_(source), device, repeats)
    return Measured(tuple(2 * source.nbytes / s for s in seconds.samples))


def decode_inputs(
    batch: int, context: int, shape: Shape, dtype: torch.dtype, device: str, layers: int
) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]], Batch]:
    """q [R, Hq, D], each layer's caches [N, B, Hkv, D], the step's batch; blocks in no order."""
    pages = -(-context // PAGE)
    blocks = list(range(batch * pages))
    random.Random(0).shuffle(blocks)
    tables = [blocks[r * pages : (r + 1) * pages] for r in range(batch)]
    slots = [t[(context - 1) // PAGE] * PAGE + (context - 1) % PAGE for t in tables]
    step = make_batch(
        [0] * batch,
        [context - 1] * batch,
        slots,
        list(range(batch + 1)),
        [context] * batch,
        tables,
        list(range(batch)),
        device=device,
    )
    pool = (len(blocks), PAGE, shape.kv_heads, shape.dim)
    kind: dict[str, Any] = {"dtype": dtype, "device": device}
    caches = [(torch.randn(pool, **kind), torch.randn(pool, **kind)) for _ in range(layers)]
    return torch.randn(batch, shape.heads, shape.dim, **kind), caches, step


def _call(
    attention: Attention,
    q: torch.Tensor,
    caches: list[tuple[torch.Tensor, torch.Tensor]],
    step: Batch,
    number: int,
) -> torch.Tensor:
    return attention(q, *caches[number % len(caches)], step)


def decode_rates(
    attentions: Mapping[str, Attention],
    sizes: Iterable[tuple[int, int]],
    shape: Shape,
    bytes_of: Callable[[list[int], int, int, float], float],
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    repeats: int = 15,
    rotate_mib: int = 256,
    progress: Progress | None = None,
) -> list[Achieved]:
    """Each attention on each (batch, context).

    bytes_of(contexts, kv_heads, head_dim, bytes_per_value) gives the bytes of one call.
    """
    sizes = list(sizes)
    found = []
    for number, (batch, context) in enumerate(sizes):
        if progress is not None:
            progress(number, len(sizes), f"batch {batch}, context {context}")
        value = torch.empty((), dtype=dtype).element_size()
        size = bytes_of([context] * batch, shape.kv_heads, shape.dim, value)
        layers = min(512, max(2, -(-rotate_mib * 2**20 // max(1, int(size)))))
        q, caches, step = decode_inputs(batch, context, shape, dtype, device, layers)
        for name, attention in attentions.items():
            call = partial(_call, attention, q, caches, step)
            with torch.inference_mode():
                seconds = time_calls(call, device, repeats)
            found.append(Achieved(name, batch, context, size, seconds))
    if progress is not None:
        progress(len(sizes), len(sizes), "decode attention")
    return found


RATE_HEAD = [
    "attention",
    "batch",
    "context",
    "must move",
    "median",
    "fastest to slowest",
    "achieved",
    "share of copy",
]


def rate_rows(found: Iterable[Achieved], copy: float) -> list[list[str]]:
    """One row a measurement; the share is of the measured copy rate, bytes/s."""
    return [
        [
            a.name,
            str(a.batch),
            f"{a.context:,}",
            f"{a.bytes / 1e6:.1f} MB",
            f"{1e3 * a.seconds.median:.3f} ms",
            f"{1e3 * min(a.seconds.samples):.3f} to {1e3 * max(a.seconds.samples):.3f} ms",
            f"{a.rate / 1e9:.1f} GB/s",
            f"{100 * a.rate / copy:.0f} %",
        ]
        for a in found
    ]


def show_rates(found: list[Achieved], copy: float, where: str) -> Shown:
    """Bars under the copy rate, and the table."""
    caption = f"Measured on {where}, which copies {copy / 1e9:.1f} GB/s"
    sizes = [f"batch {a.batch}<br>{a.context:,} tokens" for a in found]
    bars = [(a.name, size, a.rate / 1e9) for a, size in zip(found, sizes, strict=True)]
    figure = achieved_rate(bars, copy / 1e9, f"Decode attention, measured on {where}")
    return shown_table(caption, RATE_HEAD, rate_rows(found, copy), live_figure(figure))

"""What lab 08 shows of a real pair: bytes beside a formula, and how steady a decode stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from llmlab.perf.hardware import Hardware
from llmlab.trace import Trace
from llmlab.viz.show import Shown, number, shown_table

if TYPE_CHECKING:
    from llmlab.engine.pair.result import PairResult

MOVED_HEAD = [
    "prompt tokens",
    "computed",
    "tokens moved",
    "bytes moved",
    "the formula says",
    "difference",
    "transfer ms",
    "visible ms",
]
WHERE = {"remote": "elsewhere", "local": "here", "retried": "here, after a fault"}


def moved_table(result: PairResult, formula: Callable[[int], float]) -> Shown:
    """Each request of a real run; formula(tokens) says how many bytes that many tokens keep."""
    rows = []
    for request in result.requests:
        says = round(formula(request.moved_tokens))
        rows.append(
            [
                str(request.prompt_tokens),
                WHERE[request.where],
                str(request.moved_tokens),
                f"{request.bytes:,}",
                f"{says:,}",
                f"{request.bytes - says:,}",
                number(request.transfer_ms),
                number(request.visible_ms),
            ]
        )
    return shown_table("Moved between two processes, measured", MOVED_HEAD, rows)


def decode_step_ms(
    trace: Trace, request_id: str, windows: Sequence[tuple[int, int]]
) -> tuple[list[float], list[float]]:
    """(inside, outside) durations, ms, of the steps in which a request decodes alone.

    A step counts as inside if any part of it lies in one of the windows (ns).
    """
    inside: list[float] = []
    outside: list[float] = []
    for step in trace.steps:
        if [(name, decodes) for name, _, _, decodes in step.scheduled] == [(request_id, True)]:
            hit = any(step.t_start < end and start < step.t_end for start, end in windows)
            (inside if hit else outside).append((step.t_end - step.t_start) / 1e6)
    return inside, outside


def prefill_windows(result: PairResult) -> list[tuple[int, int]]:
    """When the prefill worker was at work, as the moved requests tell."""
    spans = [(r.t_prefill_start, r.t_prefill_end) for r in result.requests]
    return [(start, end) for start, end in spans if start is not None and end is not None]


def share_of(device: Hardware, share: float) -> Hardware:
    """A device with this share of another's compute, bandwidth and memory: the fairest split."""
    if not 0 < share <= 1:
        raise ValueError(f"share = {share!r}: must be in (0, 1]")
    return replace(
        device,
        name=f"{share:g} of {device.name}",
        title=f"{share:g} of {device.title}",
        peak_flops={dtype: rate * share for dtype, rate in device.peak_flops.items()},
        bandwidth=device.bandwidth * share,
        memory=device.memory * share,
    )


def warranted(colocated: float, apart: float, target: float) -> bool:
    """The library's answer to the exercise of lab 08: separate only what misses its target."""
    return colocated < target <= apart

"""What a window of the run held: tokens per second, requests at once, tokens resident.

A window is half-open, [start, end): a token at `end` is not in it. The default window, first send
to last token, is the whole run and so includes the token that ends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from llmlab.measure.per_request import (
    NS_PER_S,
    Contradiction,
    output_tokens,
    unstreamed_end,
)
from llmlab.trace import RequestRecord, Trace

BIN_NS = 1_000_000_000


@dataclass(frozen=True)
class Window:
    """[start, end) in ns; `closed` adds the instant `end` itself (the default window only)."""

    start: int
    end: int
    closed: bool = False

    def __post_init__(self) -> None:
        if self.end < self.start:
            raise ValueError(f"window = ({self.start}, {self.end}): the end is before the start")

    def __contains__(self, t: int) -> bool:
        return self.start <= t < self.end or (self.closed and t == self.end)

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / NS_PER_S

    def per_second(self, amount: float | None) -> float | None:
        """amount / length; None for an unknown amount or an empty window."""
        return amount / self.seconds if amount is not None and self.end > self.start else None


def default_window(records: Iterable[RequestRecord]) -> Window | None:
    """First send to last token of the run; None if nothing was sent."""
    sends: list[int] = []
    ends: list[int] = []
    for record in records:
        if record.t_send is not None:
            sends.append(record.t_send)
            ends += [t for t, _ in arrivals(record)]
    if not sends:
        return None
    return Window(min(sends), max([*ends, min(sends)]), closed=True)


def arrivals(record: RequestRecord) -> list[tuple[int, int | None]]:
    """(stamp, tokens or None if unknown) of everything that reached the sender."""
    whole = unstreamed_end(record)
    if whole is not None:
        return [(whole, record.completion_tokens)]
    return [(event.t, event.k) for event in record.events]


def tokens_in(record: RequestRecord, window: Window) -> int | None:
    """Tokens of one request that arrived in the window; None if they cannot be placed."""
    came = arrivals(record)
    inside = [k for t, k in came if t in window]
    if None not in inside:
        return sum(k for k in inside if k is not None)
    # With unknown k the whole answer can still be counted if all of it arrived inside.
    return output_tokens(record) if len(inside) == len(came) else None


@dataclass(frozen=True)
class Rates:
    """Rates of one window, per second; None where a token count is unknown or nothing was sent.

    output_tok_s: output tokens that arrived in the window, whatever became of their request.
    completed_output_tok_s: of completed requests alone. total_tok_s: output_tok_s plus the prompts
    whose first token arrived in the window. peak_output_tok_s: the busiest second.
    completed_req_s, goodput_req_s: completed (and within every limit) requests / window.
    offered_req_s, realized_req_s: (n - 1) / span of the intended and of the real sends.
    """

    window_s: float | None = None
    output_tokens: int | None = None
    completed_output_tokens: int | None = None
    prompt_tokens: int | None = None
    output_tok_s: float | None = None
    completed_output_tok_s: float | None = None
    total_tok_s: float | None = None
    peak_output_tok_s: float | None = None
    completed_req_s: float | None = None
    goodput_req_s: float | None = None
    offered_req_s: float | None = None
    realized_req_s: float | None = None

    def __post_init__(self) -> None:
        refuse_peak_below_mean("output rate", self.peak_output_tok_s, self.output_tok_s)

    @property
    def shortfall_percent(self) -> float | None:
        """How far the real send rate stayed under the intended one, in percent of it."""
        if not self.offered_req_s or self.realized_req_s is None:
            return None
        return 100 * (1 - self.realized_req_s / self.offered_req_s)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "shortfall_percent": self.shortfall_percent}


def refuse_peak_below_mean(what: str, peak: float | None, mean: float | None) -> None:
    """A peak is no lower than its mean (up to rounding)."""
    if peak is not None and mean is not None and peak < mean * (1 - 1e-9):
        raise Contradiction(f"{what}: the peak {peak:g} is below the average {mean:g}")


def send_rate(stamps: Sequence[int]) -> float | None:
    """(n - 1) / (last - first) per second: n sends span n - 1 intervals."""
    span = max(stamps, default=0) - min(stamps, default=0)
    return (len(stamps) - 1) * NS_PER_S / span if span > 0 else None


def tokens_per_second_bins(records: Iterable[RequestRecord], window: Window) -> list[int] | None:
    """Tokens in fixed one-second bins from the window's start; None if a k is unknown.

    The last bin may be shorter than a second. A token at the very end belongs to the last bin.
    """
    start, last = window.start, max(0, -(-(window.end - window.start) // BIN_NS) - 1)
    bins = [0] * (last + 1)
    for record in records:
        for t, k in arrivals(record):
            if t not in window:
                continue
            if k is None:
                return None
            bins[min((t - start) // BIN_NS, last)] += k
    return bins


def peak_rate(bins: Sequence[int], window: Window) -> float | None:
    """Tokens per second of the busiest bin, the last one over its real length.

    A last bin under half a second is joined to the one before: a single token in a sliver of
    time is no peak. The parts still tile the window, so the peak cannot be below the average.
    """
    if window.end == window.start:
        return None
    parts = [(tokens, BIN_NS) for tokens in bins]
    rest = (window.end - window.start) - (len(bins) - 1) * BIN_NS
    parts[-1] = (bins[-1], rest)
    if rest < BIN_NS // 2 and len(parts) > 1:
        tokens, length = parts.pop()
        parts[-1] = (parts[-1][0] + tokens, parts[-1][1] + length)
    return max(tokens * NS_PER_S / length for tokens, length in parts)


def concurrency_series(records: Iterable[RequestRecord], window: Window) -> list[tuple[int, int]]:
    """(stamp, requests in flight from it on), from the window's start to its end.

    A request is in flight in [t_send, t_end). One that was rejected never is; one without an end
    is in flight until the window closes. A request ending as another starts does not overlap it.
    """
    changes: dict[int, int] = {window.start: 0, window.end: 0}
    for record in records:
        if record.t_send is None or record.outcome in ("rejected", "cancelled_before_send"):
            continue
        ends = [record.t_end] if record.t_end is not None else [t for t, _ in arrivals(record)][-1:]
        end = window.end if record.outcome == "in_flight" or not ends else ends[0]
        start, end = max(record.t_send, window.start), min(end, window.end)
        if start < end:
            changes[start] = changes.get(start, 0) + 1
            changes[end] = changes.get(end, 0) - 1
    running, series = 0, []
    for t in sorted(changes):
        running += changes[t]
        series.append((t, running))
    return series


def concurrency(records: Iterable[RequestRecord], window: Window) -> tuple[int, float | None]:
    """(most requests in flight at once, time-weighted mean) in the window."""
    series = concurrency_series(records, window)
    peak = max(running for _, running in series)
    area = sum(running * (after - t) for (t, running), (after, _) in pairwise(series))
    length = window.end - window.start
    mean = area / length if length else None
    refuse_peak_below_mean("concurrency", peak, mean)
    return peak, mean


def resident_kv_tokens(trace: Trace) -> list[int]:
    """Tokens whose keys and values are resident during each step, over all requests.

    Read from the plans: a request holds num_computed_tokens + n after its step, until it is
    preempted, cancelled, or its last step is over. Prefixes shared by requests count once each.
    """
    last_step: dict[str, int] = {}
    for at, step in enumerate(trace.steps):
        for request_id, *_ in step.scheduled:
            last_step[request_id] = at
    leaves: dict[int, list[str]] = {}  # by step
    for request_id, at in last_step.items():
        record = trace.requests.get(request_id)
        if record is not None and record.outcome not in ("in_flight", "cancelled"):
            leaves.setdefault(at, []).append(request_id)
    cancelled = {
        r.request_id: r.t_end
        for r in trace.requests.values()
        if r.outcome == "cancelled" and r.t_end is not None
    }
    held: dict[str, int] = {}
    total, series = 0, []
    for at, step in enumerate(trace.steps):
        # Of those in the pool: a step that was planned before a cancel still computes its tokens.
        gone = [r for r in held if r in cancelled and cancelled[r] <= step.t_start]
        for request_id in [*step.preempted, *gone]:
            total -= held.pop(request_id, 0)
        for request_id, n, computed, _ in step.scheduled:
            total += computed + n - held.get(request_id, 0)
            held[request_id] = computed + n
        series.append(total)
        for request_id in leaves.get(at, ()):
            total -= held.pop(request_id)
    return series

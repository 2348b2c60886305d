"""Every figure of a run, one definition each, per class and together.

`request_metrics(record)` reads one request, `summarize(trace)` a run. Latency samples are the
completed requests that were sent in the window; tokens count when they arrived in it. What cannot
be true is refused with `Contradiction`. This module reads the trace and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llmlab.measure import noted
from llmlab.measure.limits import Limits
from llmlab.measure.per_request import Contradiction, RequestMetrics, request_metrics
from llmlab.measure.rates import (
    Rates,
    Window,
    arrivals,
    concurrency,
    default_window,
    peak_rate,
    resident_kv_tokens,
    send_rate,
    tokens_in,
    tokens_per_second_bins,
)
from llmlab.measure.stats import Resampling, Stat, describe
from llmlab.measure.summary import LATENCIES, Counts, Group, Latencies, Summary
from llmlab.measure.tables import vllm_keys
from llmlab.trace import RequestRecord, Trace

__all__ = [
    "LATENCIES",
    "Contradiction",
    "Counts",
    "Group",
    "Limits",
    "RequestMetrics",
    "Stat",
    "Summary",
    "request_metrics",
    "summarize",
    "vllm_keys",
]

TIMED_OUT = ("timeout", "client_timeout")  # a cancel the client made because it waited too long


def summarize(
    trace: Trace,
    *,
    window: tuple[int, int] | None = None,
    limits: Mapping[str, Limits] | Limits | None = None,
    percentiles: Sequence[float] = (50, 95, 99),
    bootstrap: int = 0,
    seed: int = 0,
) -> Summary:
    """All figures of a run.

    window: (start, end) in ns, half-open; None = first send to last token, that token included.
    limits: by class name, or one for every class. bootstrap: draws for the 95 % intervals of the
    means and percentiles, 0 = none; seed: of those draws.
    Raises Contradiction when the trace cannot be true, ValueError for a bad argument.
    """
    records = list(trace.requests.values())
    span = Window(*window) if window is not None else default_window(records)
    counted = records if window is None or span is None else _sent_in(records, span)
    names = _class_names(trace, counted)
    by_class = _limits_by_class(limits, names)
    metrics = {record.request_id: request_metrics(record) for record in counted}
    resampling = Resampling(bootstrap, seed)
    view = _View(trace, counted, metrics, span, by_class, tuple(percentiles), resampling)
    # The sender's own count, where it left one, must agree with the records.
    submitted = trace.meta.get("submitted", len(records)) if window is None else len(counted)
    whole = view.whole(submitted)
    classes = {name: view.of_class(name, whole) for name in names}
    kept = [
        i for i, s in enumerate(trace.steps) if window is None or span is None or s.t_start in span
    ]
    resident = resident_kv_tokens(trace)
    summary = Summary(
        all=whole,
        classes=classes,
        window=span,
        limits=by_class,
        requests=list(metrics.values()),
        trace=trace,
        max_resident_kv_tokens=max((resident[i] for i in kept), default=None),
        max_blocks_used=max((trace.steps[i].blocks_used for i in kept), default=None),
        meta=dict(trace.meta),
    )
    summary.notes.extend(_notes(summary))
    return summary


@dataclass(frozen=True)
class _View:
    """What every group of one summary shares. counted: the requests sent in the window."""

    trace: Trace
    counted: list[RequestRecord]
    metrics: Mapping[str, RequestMetrics]  # of those, by request
    window: Window | None
    limits: dict[str, Limits]
    percentiles: tuple[float, ...]
    resampling: Resampling

    def whole(self, submitted: int) -> Group:
        """Figures of all classes together; the sender says how many were submitted."""
        return self._group("all", list(self.trace.requests.values()), self.counted, submitted)

    def of_class(self, name: str, whole: Group) -> Group:
        """Figures of one class; `whole`'s where there is no other, but for what the sender says."""
        alive = [r for r in self.trace.requests.values() if r.class_name == name]
        counted = [r for r in self.counted if r.class_name == name]
        if len(alive) == len(self.trace.requests):
            return replace(whole, name=name, counts=Counts.of(counted, len(counted)))
        return self._group(name, alive, counted, len(counted))

    def _group(
        self, name: str, alive: list[RequestRecord], counted: list[RequestRecord], submitted: int
    ) -> Group:
        """Latencies are of `counted`; tokens and requests in flight of all that are `alive`.

        Those count by their own stamps, so also where the request was sent before the window.
        """
        done = [self.metrics[r.request_id] for r in counted if r.outcome == "completed"]
        counts = Counts.of(counted, submitted)
        good, judged, misses = self._judge(counted)
        peak, mean = concurrency(alive, self.window) if self.window else (0, None)
        prompts = {r.request_id: r.prompt_tokens for r in counted}
        return Group(
            name=name,
            counts=counts,
            latencies=Latencies(lambda key: self._stat([getattr(m, key) for m in done])),
            output_len=self._stat([m.n for m in done]),
            prompt_len=self._stat([prompts[m.request_id] for m in done]),
            rates=self._rates(alive, counted, counts.completed, good),
            concurrency_peak=peak,
            concurrency_mean=mean,
            good=good,
            judged=judged,
            misses=misses,
            gaps_over_limit=self._gaps_over(done),
        )

    def _stat(self, samples: list[Any]) -> Stat:
        return describe(samples, self.percentiles, self.resampling)

    def _judge(self, counted: list[RequestRecord]) -> tuple[int | None, int | None, dict[str, int]]:
        """(within every limit, judged, misses by limit); see Group."""
        good = judged = 0
        misses: dict[str, int] = {}
        bound = [r for r in counted if r.class_name in self.limits]
        for record in bound:
            timed_out = record.outcome == "cancelled" and record.reason in TIMED_OUT
            judged += record.outcome in ("completed", "failed", "rejected") or timed_out
            if record.outcome == "completed":
                missed = self.limits[record.class_name].misses(self.metrics[record.request_id])
                good += not missed
                for limit in missed:
                    misses[limit] = misses.get(limit, 0) + 1
        return (good, judged, misses) if bound else (None, None, {})

    def _gaps_over(self, done: list[RequestMetrics]) -> int | None:
        over = None
        for m in done:
            limit = self.limits[m.class_name].gap_ms if m.class_name in self.limits else None
            if limit is not None:
                over = (over or 0) + sum(gap > limit for gap in m.gaps_judged)
        return over

    def _rates(
        self,
        alive: list[RequestRecord],
        counted: list[RequestRecord],
        completed: int,
        good: int | None,
    ) -> Rates:
        if self.window is None:
            return Rates()
        window = self.window
        each = [(r.outcome, tokens_in(r, window)) for r in alive]
        tokens = _sum([count for _, count in each])
        of_completed = _sum([count for outcome, count in each if outcome == "completed"])
        first = [(r.prompt_tokens, arrivals(r)[:1]) for r in alive]
        prompts = _sum([n for n, came in first if came and came[0][0] in window])
        bins = tokens_per_second_bins(alive, window)
        total = None if tokens is None or prompts is None else tokens + prompts
        offered = [r.t_sched for r in counted if r.t_sched is not None]
        closed = noted.arrivals(self.trace).get("kind") == "closed"
        return Rates(
            window_s=window.seconds,
            output_tokens=tokens,
            completed_output_tokens=of_completed,
            prompt_tokens=prompts,
            output_tok_s=window.per_second(tokens),
            completed_output_tok_s=window.per_second(of_completed),
            total_tok_s=window.per_second(total),
            peak_output_tok_s=None if bins is None else peak_rate(bins, window),
            completed_req_s=window.per_second(completed),
            goodput_req_s=window.per_second(good),
            # In a closed loop nobody offers a rate: the answers set it.
            offered_req_s=None if closed else send_rate(offered),
            realized_req_s=send_rate([r.t_send for r in counted if r.t_send is not None]),
        )


def _sum(values: list[int | None]) -> int | None:
    """Sum, or None if a part of it is unknown."""
    return None if None in values else sum(value for value in values if value is not None)


def _sent_in(records: list[RequestRecord], window: Window) -> list[RequestRecord]:
    """Requests sent in the window; one never sent is placed where it was meant to be."""
    inside = []
    for record in records:
        at = record.t_sched if record.t_send is None else record.t_send
        if at is None:
            raise ValueError(
                f"window: request {record.request_id} has neither t_send nor t_sched, so it "
                "cannot be placed; leave the window out"
            )
        if at in window:
            inside.append(record)
    return inside


def _class_names(trace: Trace, records: list[RequestRecord]) -> list[str]:
    """Classes in the order of the workload, if the trace tells it, else as they were met."""
    order = [traffic.get("name") for traffic in noted.classes(trace)]
    met = list(dict.fromkeys(record.class_name for record in records))
    return [name for name in order if name in met] + [name for name in met if name not in order]


def _limits_by_class(
    limits: Mapping[str, Limits] | Limits | None, names: list[str]
) -> dict[str, Limits]:
    if isinstance(limits, Limits):
        limits = dict.fromkeys(names, limits)
    chosen = dict(limits or {})
    for name, limit in chosen.items():
        if not isinstance(limit, Limits):
            raise ValueError(f"limits[{name!r}] = {limit!r}: must be a Limits")
    return {name: limit for name, limit in chosen.items() if limit.any}


def _notes(summary: Summary) -> list[str]:
    notes = []
    if summary.meta.get("simulated"):
        notes.append("Simulated: the clock is the cost model's, not a machine's.")
    thin = [g.name for g in summary.groups if g.counts.completed and g["ttft"].thin_p99]
    if thin and "p99" in summary.all["ttft"].percentiles:
        notes.append(
            "p99* rests on fewer than 100 samples, so on the slowest one or two: "
            f"{', '.join(thin)}."
        )
    undefined = summary.all["ttft"].undefined
    if undefined:
        notes.append(f"{undefined} completed requests have no TTFT and are in none of its figures.")
    if any(m.itl is None for m in summary.requests):
        notes.append("Some events carry an unknown number of tokens: their gaps are not per token.")
    if any(m.assumed_one_token_first for m in summary.requests):
        notes.append("TPOT of some requests assumes one token in the first event.")
    if any(g.counts.completed != g.counts.submitted for g in summary.groups):
        notes.append("Latencies describe completed requests only; see the counts for the rest.")
    return notes

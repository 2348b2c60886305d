"""A trial of a mixed workload: its few deciding figures, held against the limits of each class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from llmlab.measure.limits import Limits
from llmlab.measure.per_request import request_metrics
from llmlab.measure.stats import percentile
from llmlab.trace import Trace
from llmlab.viz.show import Shown, number, shown_table

CHAT_TTFT, CHAT_GAP, DOCUMENT_TTFT = "chat TTFT p95", "chat gap p95", "document TTFT p95"
FIGURES = (CHAT_TTFT, CHAT_GAP, DOCUMENT_TTFT)
HOLDS, MISSES, UNKNOWN = "✓", "✗", "○"


@dataclass(frozen=True)
class Trial:
    """figures: name -> ms, None where nothing was measured. rate: output tokens/s of all.

    gap_p99: p99 of the pooled chat gaps, ms; None if it was not recorded.
    """

    name: str
    figures: Mapping[str, float | None]
    rate: float | None
    gap_p99: float | None = None
    simulated: bool = False


def limits_by_figure(limits: Mapping[str, Limits]) -> dict[str, float]:
    """The limits of chats and documents under the names of the figures they are for, in ms."""
    chat, document = limits.get("chat", Limits()), limits.get("document", Limits())
    pairs = zip(FIGURES, (chat.ttft_ms, chat.gap_ms, document.ttft_ms), strict=True)
    return {name: limit for name, limit in pairs if limit is not None}


def trial_of(trace: Trace, name: str) -> Trial:
    """The figures of a run. TTFT counts from the intended send; percentiles pool all requests."""
    ttft: dict[str, list[float]] = {}
    gaps: list[float] = []
    tokens, begin, end = 0, None, 0
    for record in trace.requests.values():
        m = request_metrics(record)
        if m.ttft_judged is not None:
            ttft.setdefault(record.class_name, []).append(m.ttft_judged)
        if record.class_name == "chat":
            gaps += m.itl or []
        if record.t_send is not None:
            begin = record.t_send if begin is None else min(begin, record.t_send)
        if record.events:
            tokens += sum(e.k or 1 for e in record.events)
            end = max(end, record.events[-1].t)
    seconds = (end - begin) / 1e9 if begin is not None and end > begin else None
    figures = {
        CHAT_TTFT: percentile(ttft.get("chat", []), 95),
        CHAT_GAP: percentile(gaps, 95),
        DOCUMENT_TTFT: percentile(ttft.get("document", []), 95),
    }
    rate = tokens / seconds if seconds else None
    return Trial(name, figures, rate, percentile(gaps, 99), trace.simulated)


def misses(trial: Trial, limits: Mapping[str, float]) -> list[str]:
    """Figures over their limit; one equal to it holds, and so does one that was not measured."""
    over = []
    for name, limit in limits.items():
        value = trial.figures.get(name)
        if value is not None and value > limit:
            over.append(name)
    return over


def verdict_head(limits: Mapping[str, float]) -> list[str]:
    """Column heads; each figure carries its limit."""
    named = [f"{n} (≤ {limits[n]:,.0f} ms)" if n in limits else f"{n} (ms)" for n in FIGURES]
    return ["trial", "verdict", *named, "chat gap p99 (ms)", "output tok/s"]


def verdict_rows(trials: Sequence[Trial], limits: Mapping[str, float]) -> list[list[str]]:
    """One row a trial; glyph and word for the whole and for each limit."""
    rows = []
    for trial in trials:
        over = misses(trial, limits)
        cells = [_cell(trial.figures.get(n), n in limits, n in over) for n in FIGURES]
        measured = [n for n in limits if trial.figures.get(n) is not None]
        if not limits:
            verdict = "no limits to hold"
        elif over:
            verdict = f"{MISSES} fails {len(over)} of {len(limits)}"
        elif len(measured) < len(limits):
            verdict = f"{UNKNOWN} only {len(measured)} of {len(limits)} measured"
        else:
            verdict = f"{HOLDS} passes all {len(limits)}"
        rate = number(trial.rate, 0)
        rows.append([trial.name, verdict, *cells, _cell(trial.gap_p99, False, False), rate])
    return rows


def _cell(value: float | None, limited: bool, over: bool) -> str:
    if value is None:
        return "–"
    text = f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
    return f"{text} {f'{MISSES} over' if over else f'{HOLDS} holds'}" if limited else text


def show_verdicts(trials: Sequence[Trial], limits: Mapping[str, float], caption: str) -> Shown:
    """The trials as a table that shows itself."""
    return shown_table(caption, verdict_head(limits), verdict_rows(trials, limits))


def around_longest_gap(trace: Trace, class_name: str = "chat", span_ms: float = 2000.0) -> Trace:
    """The same trace with only the steps about its longest gap of that class: where to look.

    span_ms: how long a stretch, ms; steps that reach into it count.
    """
    longest, at = -1, None
    for record in trace.requests.values():
        if record.class_name != class_name:
            continue
        for a, b in pairwise(event.t for event in record.events):
            if b - a > longest:
                longest, at = b - a, (a + b) // 2
    if at is None:
        return trace
    half = span_ms * 1e6 / 2  # ns
    low, high = at - half, at + half
    near = [s for s in trace.steps if s.t_end >= low and s.t_start <= high]
    return Trace(meta=trace.meta, requests=trace.requests, steps=near)

"""What one request's stamps say: its latencies in milliseconds, each under one name.

    t_sched   t_send   t_queued   t_first_scheduled   first event   last event   t_end
       |--dispatch-|--preproc.--|-------queue-------|--prefill---|---decode---|-close lag-|
                   |------------------- ttft --------------------|
                   |-------------------------- e2e ---------------------------|

Stamps come in as integer nanoseconds. A figure that is not defined (no token, no later token,
stamp not taken) is None, never 0. This module knows neither populations nor limits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from llmlab.trace import RequestRecord, TokenEvent

NS_PER_MS = 1e6
NS_PER_S = 1e9


class Contradiction(ValueError):
    """The trace says two things that cannot both be true, so no figure is given."""


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Latencies of one request in milliseconds; None where undefined.

    ttft: first token event (any channel) - send; ttfat: first content token - send;
    ttft_from_schedule: first token event - intended send.
    dispatch_delay: intended send to send; preprocessing: send to taken by the engine;
    queue: taken to first scheduled; prefill: first scheduled to first token event;
    preempted_wait: time spent preempted, apart from queue.
    event_gaps: raw gaps between token events. itl: one sample per token, an event of k tokens
    after a gap d gives k samples of d/k; None when a k is unknown.
    tpot: (last - first event) / tokens after the first event = mean(itl). With an unknown k these
    are n - k of the first event, which is taken for 1 (`assumed_one_token_first`) if unknown too.
    e2e: last token event - send; e2e_from_schedule: last token event - intended send;
    close_lag: end of the stream - last token event.
    stream_rate: 1/tpot in tokens/s; e2e_rate: n/e2e in tokens/s.
    n: output tokens (reported count, else the sum of k), None if unknown.
    """

    request_id: str
    class_name: str
    outcome: str
    n: int | None = None
    ttft: float | None = None
    ttfat: float | None = None
    ttft_from_schedule: float | None = None
    dispatch_delay: float | None = None
    preprocessing: float | None = None
    queue: float | None = None
    prefill: float | None = None
    preempted_wait: float = 0.0
    event_gaps: list[float] = field(default_factory=list)
    itl: list[float] | None = field(default_factory=list)
    tpot: float | None = None
    assumed_one_token_first: bool = False
    e2e: float | None = None
    e2e_from_schedule: float | None = None
    close_lag: float | None = None
    stream_rate: float | None = None
    e2e_rate: float | None = None

    # What a limit is held against: a late sender hides nothing, an unknown count neither.

    @property
    def ttft_judged(self) -> float | None:
        """TTFT from the intended send where it is known."""
        return self.ttft if self.ttft_from_schedule is None else self.ttft_from_schedule

    @property
    def e2e_judged(self) -> float | None:
        """E2E from the intended send where it is known."""
        return self.e2e if self.e2e_from_schedule is None else self.e2e_from_schedule

    @property
    def gaps_judged(self) -> list[float]:
        """The gaps per token; raw between events, the stricter reading, where a k is unknown."""
        return self.event_gaps if self.itl is None else self.itl


def request_metrics(record: RequestRecord) -> RequestMetrics:
    """Every latency of one request.

    Raises Contradiction for a negative interval, an event without tokens, or more streamed
    tokens than the reported count.
    """
    events = merge_events(record)
    _check_order(record, events)
    n = output_tokens(record)
    first, last = (events[0].t, events[-1].t) if events else (None, None)
    # A response that was not streamed has no token event: only its end is known.
    done = last if events else unstreamed_end(record)
    tpot, assumed = _tpot(events, n)
    e2e = _ms(record.t_send, done)
    return RequestMetrics(
        request_id=record.request_id,
        class_name=record.class_name,
        outcome=record.outcome,
        n=n,
        ttft=_ms(record.t_send, first),
        ttfat=_ms(record.t_send, _first_content(record)),
        ttft_from_schedule=_ms(record.t_sched, first),
        dispatch_delay=_ms(record.t_sched, record.t_send),
        preprocessing=_ms(record.t_send, record.t_queued),
        queue=_ms(record.t_queued, record.t_first_scheduled),
        prefill=_ms(record.t_first_scheduled, first),
        preempted_wait=_preempted_wait(record),
        event_gaps=[(b.t - a.t) / NS_PER_MS for a, b in pairwise(events)],
        itl=_itl(events),
        tpot=tpot,
        assumed_one_token_first=assumed,
        e2e=e2e,
        e2e_from_schedule=_ms(record.t_sched, done),
        close_lag=_ms(last, record.t_end),
        stream_rate=1e3 / tpot if tpot else None,
        e2e_rate=1e3 * n / e2e if n and e2e else None,
    )


def merge_events(record: RequestRecord) -> list[TokenEvent]:
    """The token events with equal stamps made one: one read is one arrival."""
    merged: list[TokenEvent] = []
    for event in record.events:
        if event.k is not None and event.k < 1:
            raise Contradiction(
                f"request {record.request_id}: a token event carries k = {event.k} tokens; "
                "only a stamp with at least one token is a token event"
            )
        if merged and merged[-1].t == event.t:
            before = merged[-1].k
            together = None if before is None or event.k is None else before + event.k
            merged[-1] = TokenEvent(event.t, together, merged[-1].channel)
        else:
            merged.append(TokenEvent(event.t, event.k, event.channel))
    return merged


def output_tokens(record: RequestRecord) -> int | None:
    """N: the reported count, else the sum of k, else None. Refuses sum(k) > N."""
    known = [event.k for event in record.events if event.k is not None]
    total = sum(known)
    if record.completion_tokens is not None:
        if total > record.completion_tokens:
            raise Contradiction(
                f"request {record.request_id}: {total} tokens were streamed but "
                f"completion_tokens says {record.completion_tokens}"
            )
        return record.completion_tokens
    if len(known) < len(record.events) or (not record.events and unstreamed_end(record)):
        return None
    return total


def unstreamed_end(record: RequestRecord) -> int | None:
    """When a completed answer without token events arrived whole; None for an empty answer."""
    if record.events or record.outcome != "completed" or record.completion_tokens == 0:
        return None
    return record.t_end


def _check_order(record: RequestRecord, events: list[TokenEvent]) -> None:
    names = ("t_sched", "t_send", "t_queued", "t_first_scheduled")
    stamps: list[tuple[str, int | None]] = [(name, getattr(record, name)) for name in names]
    stamps += [(f"token event {i}", event.t) for i, event in enumerate(events)]
    stamps.append(("t_end", record.t_end))
    taken = [(name, t) for name, t in stamps if t is not None]
    for (before, a), (after, b) in pairwise(taken):
        if b < a:
            raise Contradiction(
                f"request {record.request_id}: negative interval, {after} = {b} ns is earlier "
                f"than {before} = {a} ns"
            )
    for left, back in record.preemptions:
        if back is not None and back < left:
            raise Contradiction(
                f"request {record.request_id}: negative interval, scheduled again at {back} ns "
                f"but preempted at {left} ns"
            )


def _ms(start: int | None, end: int | None) -> float | None:
    return None if start is None or end is None else (end - start) / NS_PER_MS


def _first_content(record: RequestRecord) -> int | None:
    return next((event.t for event in record.events if event.channel == "content"), None)


def _preempted_wait(record: RequestRecord) -> float:
    """Time between each preemption and the step that scheduled the request again (or its end)."""
    ends = [(left, record.t_end if back is None else back) for left, back in record.preemptions]
    return sum((end - left) / NS_PER_MS for left, end in ends if end is not None)


def _itl(events: list[TokenEvent]) -> list[float] | None:
    samples: list[float] = []
    for before, event in pairwise(events):
        if event.k is None:
            return None
        samples += [(event.t - before.t) / NS_PER_MS / event.k] * event.k
    return samples


def _tpot(events: list[TokenEvent], n: int | None) -> tuple[float | None, bool]:
    """(TPOT in ms or None, whether one token in the first event had to be assumed)."""
    if len(events) < 2:
        return None, False
    span = (events[-1].t - events[0].t) / NS_PER_MS
    later = [event.k for event in events[1:] if event.k is not None]
    if len(later) == len(events) - 1:
        return span / sum(later), False
    if n is None:
        return None, False
    first = events[0].k
    after_first = n - (1 if first is None else first)
    return (span / after_first if after_first > 0 else None), first is None

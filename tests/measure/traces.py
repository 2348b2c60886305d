"""Traces written by hand, in milliseconds, as the cases read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from llmlab.trace import RequestRecord, TokenEvent, Trace

MS = 1_000_000


def ns(ms: float | None) -> int | None:
    return None if ms is None else round(ms * MS)


def record(
    request_id: str = "r0",
    events: Iterable[float | tuple[Any, ...]] = (),
    *,
    sched: float | None = None,
    send: float | None = 0,
    queued: float | None = None,
    first_scheduled: float | None = None,
    end: float | None = None,
    outcome: str = "completed",
    **rest: Any,
) -> RequestRecord:
    """events: t (one token), (t, k) or (t, k, channel)."""
    tuples = [event if isinstance(event, tuple) else (event,) for event in events]
    return RequestRecord(
        request_id=request_id,
        t_sched=ns(sched),
        t_send=ns(send),
        t_queued=ns(queued),
        t_first_scheduled=ns(first_scheduled),
        events=[TokenEvent(ns(t), *more) for t, *more in tuples],
        t_end=ns(end),
        outcome=outcome,
        **rest,
    )


def trace(*records: RequestRecord, **meta: Any) -> Trace:
    return Trace(meta=meta, requests={r.request_id: r for r in records})

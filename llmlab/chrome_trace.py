"""A trace as Chrome trace events, which https://ui.perfetto.dev and chrome://tracing open.

    requests   a track each: before the queue, queue, prefill pieces, decode steps, preempted waits
    engine     a track of its steps (one a worker), and counters of blocks used, running and waiting

Times are microseconds from the first stamp of the trace; that stamp is in `otherData`. Nothing is
measured or left out here: a span is two stamps of the trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llmlab.trace import RequestRecord, StepRecord, Trace

ENGINE, REQUESTS = 1, 2
Event = dict[str, Any]


def to_chrome(trace: Trace) -> dict[str, Any]:
    """The trace in the JSON object format of Chrome's Trace Event Format.

    ValueError if an interval ends before it begins, or a step names a request there is none of.
    """
    t0 = min(_stamps(trace), default=0)
    tracks = {name: number for number, name in enumerate(trace.requests, 1)}
    events = [
        _name("process_name", ENGINE, 0, "engine"),
        _name("process_name", REQUESTS, 0, "requests"),
    ]
    workers = {name: number for number, name in enumerate(_workers(trace), 1)}
    for name, track in workers.items():
        events.append(_name("thread_name", ENGINE, track, f"{name} steps".strip()))
    for name, track in tracks.items():
        events.append(_name("thread_name", REQUESTS, track, name))
        events += _request_events(trace.requests[name], track, t0)
    for step in trace.steps:
        events += _step_events(step, workers[step.worker], tracks, t0)
    other = {"t0_ns": t0, **{key: str(value) for key, value in trace.meta.items()}}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": other}


def _request_events(record: RequestRecord, track: int, t0: int) -> Iterator[Event]:
    """Its waits as spans, its token events and its end as instants."""
    ended, begun = record.t_end, record.t_first_scheduled
    waits = [
        ("before the queue", record.t_send, record.t_queued),
        ("queue", record.t_queued, ended if begun is None else begun),
    ]
    for left, back in record.preemptions:
        waits.append(("preempted", left, ended if back is None else back))
    for name, start, end in waits:
        if start is not None and end is not None:
            yield _span(name, REQUESTS, track, start, end, t0, record.request_id)
    for event in record.events:
        about = {"tokens": event.k, "channel": event.channel}
        yield _instant("token", track, event.t, t0, about)
    if ended is not None:
        end_of: Event = {"finish_reason": record.finish_reason, "reason": record.reason}
        yield _instant(record.outcome, track, ended, t0, end_of)


def _workers(trace: Trace) -> list[str]:
    """Who took the steps, in order of their names; one nameless engine if nobody says."""
    return sorted({step.worker for step in trace.steps}) or [""]


def _step_events(step: StepRecord, engine: int, tracks: dict[str, int], t0: int) -> Iterator[Event]:
    """The step, what it did for each request, and the state of the pool after it."""
    owner = f"step {step.index}"
    times = (step.t_start, step.t_end, t0, owner)
    about: Event = {
        "prefill_tokens": step.prefill_tokens,
        "decode_tokens": step.decode_tokens,
        "requests": len(step.scheduled),
        "preempted": step.preempted,
        "cache_hit_tokens": step.cache_hit_tokens,
        **(step.utilization or {}),
    }
    yield {**_span(owner, ENGINE, engine, *times), "args": about}
    for name, n, computed, decodes in step.scheduled:
        if name not in tracks:
            raise ValueError(f"{owner} schedules {name!r}: must be a request of the trace")
        kind = "decode" if decodes else f"prefill {n}"
        more = {"step": step.index, "tokens": n, "num_computed_tokens": computed}
        yield {**_span(kind, REQUESTS, tracks[name], *times), "args": more}
    for counter, value in (
        ("blocks used", step.blocks_used),
        ("running", step.num_running),
        ("waiting", step.num_waiting),
    ):
        yield {
            "ph": "C",
            "name": f"{step.worker} {counter}".strip(),
            "pid": ENGINE,
            "ts": (step.t_end - t0) / 1000,
            "args": {counter: value},
        }


def _span(name: str, process: int, track: int, start: int, end: int, t0: int, owner: str) -> Event:
    if end < start:
        raise ValueError(
            f"{owner}: {name!r} from {start} to {end} ns: must not end before it begins"
        )
    return {
        "ph": "X",
        "name": name,
        "pid": process,
        "tid": track,
        "ts": (start - t0) / 1000,
        "dur": (end - start) / 1000,
    }


def _instant(name: str, track: int, t: int, t0: int, about: Event) -> Event:
    return {
        "ph": "i",
        "s": "t",
        "name": name,
        "pid": REQUESTS,
        "tid": track,
        "ts": (t - t0) / 1000,
        "args": about,
    }


def _name(kind: str, process: int, track: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": track, "args": {"name": name}}


def _stamps(trace: Trace) -> Iterator[int]:
    for record in trace.requests.values():
        own = (record.t_send, record.t_queued, record.t_first_scheduled, record.t_end)
        yield from (t for t in own if t is not None)
        yield from (event.t for event in record.events)
        yield from (t for pair in record.preemptions for t in pair if t is not None)
    for step in trace.steps:
        yield from (step.t_start, step.t_end)

"""The one record: what happened to each request and in each step.

Engine, simulator and HTTP client all write it; metrics, figures, widgets and the checker read
nothing else. Raw stamps are kept, so every figure can be recomputed from a saved trace.

Stamps are integer nanoseconds on one monotonic clock (virtual in the simulator). A stamp that
does not apply is None, never 0. This module does not know what a metric is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

FORMAT = "llmlab-trace/1"

Channel = Literal["content", "reasoning", "tool"]
Outcome = Literal[
    "completed", "failed", "cancelled", "rejected", "cancelled_before_send", "in_flight"
]


@dataclass(slots=True)
class TokenEvent:
    """One stamp at which k >= 1 tokens arrived; k is None when the count is unknown."""

    t: int
    k: int | None = 1
    channel: Channel = "content"


@dataclass(slots=True)
class RequestRecord:
    """One request from intent to end.

    t_sched: when the workload meant to send it; t_send: when it was sent; t_queued: when it came
    to the engine, ready to be computed, whether or not a step was running (so t_send..t_queued is
    preprocessing and transport); t_first_scheduled: when the first step that gave it tokens was
    planned; t_end: when it was over for its sender.
    preemptions: (preempted at, scheduled again at or None) pairs.
    Clients only: reads, (stamp, bytes) of each socket read of the answer; frames, how many
    streamed frames of each kind there were (role, content, finish, usage, ...).
    """

    request_id: str
    class_name: str = "default"
    prompt_tokens: int | None = None
    max_tokens: int | None = None
    t_sched: int | None = None
    t_send: int | None = None
    t_queued: int | None = None
    t_first_scheduled: int | None = None
    events: list[TokenEvent] = field(default_factory=list)
    completion_tokens: int | None = None
    count_source: str | None = None
    cached_tokens: int = 0
    preemptions: list[tuple[int, int | None]] = field(default_factory=list)
    outcome: Outcome = "in_flight"
    finish_reason: str | None = None
    reason: str | None = None
    t_end: int | None = None
    reads: list[tuple[int, int]] = field(default_factory=list)
    frames: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class StepRecord:
    """One engine step: the plan, and the state of the pool after it.

    Steps do not overlap: t_start is when it was planned, or when the step before it was over if
    it was launched behind that one.
    scheduled: (request_id, n tokens, num_computed_tokens before, decodes?) per request.
    utilization: optional achieved figures by part (see perf.roofline), as plain numbers.
    worker: which engine took it, where a run has several ("prefill 0", "decode 0"); else "".
    """

    index: int
    t_start: int
    t_end: int
    scheduled: list[tuple[str, int, int, bool]]
    preempted: list[str] = field(default_factory=list)
    blocks_used: int = 0
    num_running: int = 0
    num_waiting: int = 0
    cache_hit_tokens: int = 0
    utilization: dict[str, float] | None = None
    worker: str = ""

    @property
    def decode_tokens(self) -> int:
        return sum(n for _, n, _, decodes in self.scheduled if decodes)

    @property
    def prefill_tokens(self) -> int:
        return sum(n for _, n, _, decodes in self.scheduled if not decodes)


@dataclass
class Trace:
    """A run. `meta` holds what is true of all of it: source, simulated, model, config, seed."""

    meta: dict[str, Any] = field(default_factory=dict)
    requests: dict[str, RequestRecord] = field(default_factory=dict)
    steps: list[StepRecord] = field(default_factory=list)

    @property
    def simulated(self) -> bool:
        return bool(self.meta.get("simulated", False))

    def write_jsonl(self, path: str | Path) -> None:
        """Write one JSON object a line: a header, then requests, then steps."""
        with Path(path).open("w", encoding="utf-8") as out:
            out.writelines(self.jsonl_lines())

    def jsonl_lines(self) -> Iterator[str]:
        """The lines of the file, each with its line break."""
        for line in self._lines():
            yield json.dumps(line, allow_nan=False) + "\n"

    def _lines(self) -> Iterable[dict[str, Any]]:
        yield {"kind": "header", "format": FORMAT, "meta": self.meta}
        for request in self.requests.values():
            yield {"kind": "request", **asdict(request)}
        for step in self.steps:
            yield {"kind": "step", **asdict(step)}

    @classmethod
    def read_jsonl(cls, path: str | Path) -> Trace:
        """Read a trace back; a bad line is a ValueError that names file and line."""
        try:
            with Path(path).open(encoding="utf-8") as lines:
                return cls.from_jsonl(lines, str(path))
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: not a trace, which is UTF-8 text: {error}") from error

    @classmethod
    def from_jsonl(cls, lines: Iterable[str], name: str = "trace") -> Trace:
        """The trace whose `jsonl_lines` these are; `name` is what an error calls them."""
        trace = cls()
        for number, line in enumerate(lines, 1):
            try:
                trace._take(json.loads(line), first=number == 1)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                raise ValueError(f"{name}:{number}: not a trace line: {error}") from error
        if "format" not in trace.meta:
            raise ValueError(f"{name}: empty file, expected a trace ({FORMAT})")
        return trace

    def _take(self, line: dict[str, Any], first: bool) -> None:
        kind = line.pop("kind")
        if first != (kind == "header"):
            raise ValueError("the header belongs on line 1, and only there")
        if kind == "header":
            if line["format"] != FORMAT:
                raise ValueError(f"format {line['format']!r}, expected {FORMAT!r}")
            self.meta = {**line["meta"], "format": FORMAT}
        elif kind == "request":
            line["events"] = [TokenEvent(**event) for event in line["events"]]
            line["preemptions"] = [tuple(pair) for pair in line["preemptions"]]
            line["reads"] = [tuple(pair) for pair in line.get("reads", [])]
            record = RequestRecord(**line)
            _check_request(record)
            if record.request_id in self.requests:
                raise ValueError(f"request_id {record.request_id!r} is there already")
            self.requests[record.request_id] = record
        elif kind == "step":
            line["scheduled"] = [tuple(entry) for entry in line["scheduled"]]
            step = StepRecord(**line)
            _check_step(step)
            self.steps.append(step)
        else:
            raise ValueError(f"unknown kind {kind!r}")


STAMPS = ("t_sched", "t_send", "t_queued", "t_first_scheduled", "t_end")
COUNTS = ("prompt_tokens", "max_tokens", "completion_tokens", "cached_tokens")
STATES = ("index", "t_start", "t_end", "blocks_used", "num_running", "num_waiting")


def _check_request(record: RequestRecord) -> None:
    """Types only: a figure must not fail later on a text where a stamp should be."""
    for name in ("request_id", "class_name", "outcome"):
        _text(name, getattr(record, name))
    for name in ("count_source", "finish_reason", "reason"):
        _text(name, getattr(record, name), or_none=True)
    for name in (*STAMPS, *COUNTS):
        _whole(name, getattr(record, name), or_none=name != "cached_tokens")
    for event in record.events:
        _whole("events.t", event.t)
        _whole("events.k", event.k, or_none=True)
        _text("events.channel", event.channel)
    for start, again in record.preemptions:
        _whole("preemptions", start)
        _whole("preemptions", again, or_none=True)
    for stamp, size in record.reads:
        _whole("reads", stamp)
        _whole("reads", size)
    for kind, count in record.frames.items():
        _whole(f"frames.{kind}", count)


def _check_step(step: StepRecord) -> None:
    for name in (*STATES, "cache_hit_tokens"):
        _whole(name, getattr(step, name))
    for request_id, n, computed, decodes in step.scheduled:
        _text("scheduled", request_id)
        _whole("scheduled", n)
        _whole("scheduled", computed)
        _require(isinstance(decodes, bool), "scheduled", decodes)
    for request_id in step.preempted:
        _text("preempted", request_id)
    for name, value in (step.utilization or {}).items():
        _require(type(value) in (int, float), f"utilization.{name}", value)
    _text("worker", step.worker)


def _whole(name: str, value: Any, or_none: bool = False) -> None:
    _require(type(value) is int or (or_none and value is None), name, value)


def _text(name: str, value: Any, or_none: bool = False) -> None:
    _require(isinstance(value, str) or (or_none and value is None), name, value)


def _require(holds: bool, name: str, value: Any) -> None:
    if not holds:
        raise ValueError(f"{name} = {value!r} has the wrong type")

"""The figures of a run as data: what became of the requests, and every distribution and rate.

Made by `metrics.summarize`; this module computes nothing from stamps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

from llmlab.measure.limits import Limits
from llmlab.measure.per_request import Contradiction, RequestMetrics
from llmlab.measure.rates import Rates, Window
from llmlab.measure.stats import METHOD, Stat
from llmlab.trace import RequestRecord, Trace

# Name -> unit of every distribution a Group holds, in the order of a request's life.
LATENCIES = {
    "dispatch_delay": "ms",
    "preprocessing": "ms",
    "queue": "ms",
    "prefill": "ms",
    "ttft": "ms",
    "ttft_from_schedule": "ms",
    "ttfat": "ms",
    "tpot": "ms",
    "itl": "ms",
    "event_gaps": "ms",
    "preempted_wait": "ms",
    "e2e": "ms",
    "e2e_from_schedule": "ms",
    "close_lag": "ms",
    "stream_rate": "tok/s",
    "e2e_rate": "tok/s",
}
OUTCOMES = {  # outcome in the trace -> its count
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "rejected": "rejected",
    "cancelled_before_send": "cancelled_before_send",
    "in_flight": "in_flight_at_end",
}


@dataclass(frozen=True)
class Counts:
    """What became of the requests; refuses books that do not balance.

    submitted = admitted + rejected + cancelled_before_send;
    admitted = completed + failed + cancelled + in_flight_at_end.
    completed_empty: completed without one token.
    """

    submitted: int
    rejected: int
    cancelled_before_send: int
    admitted: int
    completed: int
    failed: int
    cancelled: int
    in_flight_at_end: int
    completed_empty: int = 0

    def __post_init__(self) -> None:
        door = self.admitted + self.rejected + self.cancelled_before_send
        if self.submitted != door:
            raise Contradiction(
                f"the books do not balance: submitted {self.submitted} is not admitted "
                f"{self.admitted} + rejected {self.rejected} + cancelled before send "
                f"{self.cancelled_before_send}"
            )
        if self.admitted != self.completed + self.failed + self.cancelled + self.in_flight_at_end:
            raise Contradiction(
                f"the books do not balance: admitted {self.admitted} is not completed "
                f"{self.completed} + failed {self.failed} + cancelled {self.cancelled} + in "
                f"flight at the end {self.in_flight_at_end}"
            )

    @classmethod
    def of(cls, records: Sequence[RequestRecord], submitted: int) -> Counts:
        """Count outcomes; `submitted` comes from whoever sent them."""
        tally = dict.fromkeys(OUTCOMES.values(), 0)
        for record in records:
            if record.outcome not in OUTCOMES:
                raise Contradiction(
                    f"request {record.request_id}: outcome {record.outcome!r} has no place in "
                    f"the books; known are {', '.join(OUTCOMES)}"
                )
            tally[OUTCOMES[record.outcome]] += 1
        alive = ("completed", "failed", "cancelled", "in_flight_at_end")
        empty = sum(
            1
            for r in records
            if r.outcome == "completed" and not r.events and r.completion_tokens == 0
        )
        admitted = sum(tally[name] for name in alive)
        return cls(submitted=submitted, admitted=admitted, completed_empty=empty, **tally)


class Latencies(Mapping[str, Stat]):
    """A Stat for each of LATENCIES, computed when it is first asked for: a panel asks for three."""

    def __init__(self, stat: Callable[[str], Stat]) -> None:
        self._stat = cache(stat)

    def __getitem__(self, name: str) -> Stat:
        if name not in LATENCIES:
            raise KeyError(name)
        return self._stat(name)

    def __iter__(self) -> Iterator[str]:
        return iter(LATENCIES)

    def __len__(self) -> int:
        return len(LATENCIES)


@dataclass(frozen=True)
class Group:
    """All figures of one class of requests, or of all of them.

    good: completed and within every limit of its class; judged: completed, failed, rejected and
    timed out by the client (scripted cancels and stops by the end of the run are not judged);
    attainment: good / judged. The three are None without limits.
    misses: how many completed requests missed each limit. gaps_over_limit: pooled gaps above
    gap_ms. concurrency_mean is time-weighted. output_len, prompt_len: tokens of completed requests.
    """

    name: str
    counts: Counts
    latencies: Mapping[str, Stat]
    output_len: Stat
    prompt_len: Stat
    rates: Rates
    concurrency_peak: int = 0
    concurrency_mean: float | None = None
    good: int | None = None
    judged: int | None = None
    misses: dict[str, int] = field(default_factory=dict)
    gaps_over_limit: int | None = None

    @property
    def attainment(self) -> float | None:
        return self.good / self.judged if self.judged and self.good is not None else None

    def __getitem__(self, name: str) -> Stat:
        """`group["ttft"].p95`; see LATENCIES for the names."""
        if name not in self.latencies:
            raise ValueError(f"figure {name!r}: must be one of {', '.join(self.latencies)}")
        return self.latencies[name]

    def as_meant(self, name: str) -> Stat:
        """The same from the intended send on, where anybody noted one ("ttft", "e2e")."""
        late = self.latencies.get(f"{name}_from_schedule")
        return late if late is not None and late.n else self[name]

    def to_dict(self) -> dict[str, Any]:
        return {
            "counts": asdict(self.counts),
            "good": self.good,
            "judged": self.judged,
            "attainment": self.attainment,
            "misses": self.misses,
            "gaps_over_limit": self.gaps_over_limit,
            **{
                f"{name}_ms" if unit == "ms" else f"{name}_tok_s": self.latencies[name].to_dict()
                for name, unit in LATENCIES.items()
            },
            "output_len": self.output_len.to_dict(),
            "prompt_len": self.prompt_len.to_dict(),
            "rates": self.rates.to_dict(),
            "concurrency": {"peak": self.concurrency_peak, "mean": self.concurrency_mean},
        }


@dataclass(frozen=True)
class Summary:
    """A run in figures: `summary.all`, `summary["chat"]`, and how they were made.

    requests: the metrics of every request counted; trace: what they were read from.
    max_resident_kv_tokens: most held during a step (requests that end in it still hold theirs);
    max_blocks_used: most held after a step. Both are None for a trace without steps (a client's).
    notes: what a reader must know, as sentences.
    """

    all: Group
    classes: dict[str, Group]
    window: Window | None
    limits: dict[str, Limits]
    requests: list[RequestMetrics] = field(repr=False)
    trace: Trace = field(repr=False)
    max_resident_kv_tokens: int | None = None
    max_blocks_used: int | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __getitem__(self, class_name: str) -> Group:
        if class_name not in self.classes:
            raise ValueError(f"class {class_name!r}: must be one of {', '.join(self.classes)}")
        return self.classes[class_name]

    def samples(self, class_name: str, key: str) -> list[float]:
        """What the completed requests of a class have under `key` of RequestMetrics, pooled."""
        pool: list[float] = []
        for m in self.requests:
            if m.class_name == class_name and m.outcome == "completed":
                value = getattr(m, key)
                pool += value if isinstance(value, list) else [] if value is None else [value]
        return pool

    @property
    def groups(self) -> list[Group]:
        """Every class, then all together (alone if there is but one class)."""
        return [*self.classes.values(), self.all] if len(self.classes) > 1 else [self.all]

    def to_dict(self) -> dict[str, Any]:
        window = self.window and {"start_ns": self.window.start, "end_ns": self.window.end}
        return {
            "format": "llmlab-summary/1",
            "meta": self.meta,
            "window": window,
            "percentile_method": METHOD,
            "limits": {name: asdict(limits) for name, limits in self.limits.items()},
            "max_resident_kv_tokens": self.max_resident_kv_tokens,
            "max_blocks_used": self.max_blocks_used,
            "notes": self.notes,
            "all": self.all.to_dict(),
            "classes": {name: group.to_dict() for name, group in self.classes.items()},
        }

    def to_markdown(self) -> str:
        from llmlab.measure.tables import markdown

        return markdown(self)

    def to_csv(self) -> str:
        from llmlab.measure.tables import csv_text

        return csv_text(self)

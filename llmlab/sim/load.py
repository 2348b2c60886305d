"""What is sent to the simulated server, and when: open loop (a list) or closed loop (users).

No torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from llmlab.config import is_real, require, require_int

MAX_STAMP = 2**62


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: when it is sent (ns, on the virtual clock), its lengths and its class.

    prompt_token_ids: only where prefix caching should see equal prefixes; else None.
    cancel_after_ns, cancel_after_tokens: when its client leaves; None = it stays.
    """

    t: int
    prompt_tokens: int
    output_tokens: int
    class_name: str = "default"
    prompt_token_ids: tuple[int, ...] | None = None
    priority: int = 0
    cancel_after_ns: int | None = None
    cancel_after_tokens: int | None = None

    def __post_init__(self) -> None:
        # Stamps are whole nanoseconds; a float that is not (NaN, 0.5) would not add up exactly.
        stamp: Any = self.t
        if isinstance(stamp, float) and stamp.is_integer():
            object.__setattr__(self, "t", int(stamp))
        require_int("Arrival", "t", self.t, 0, MAX_STAMP)
        require_int("Arrival", "prompt_tokens", self.prompt_tokens, 1)
        require_int("Arrival", "output_tokens", self.output_tokens, 1)
        ids = self.prompt_token_ids
        same = ids is None or len(ids) == self.prompt_tokens
        require(same, "Arrival", "prompt_token_ids", ids, f"{self.prompt_tokens} ids, or None")
        for name in ("cancel_after_ns", "cancel_after_tokens"):
            if getattr(self, name) is not None:
                require_int("Arrival", name, getattr(self, name), 1, MAX_STAMP)


@dataclass
class Load:
    """Arrivals whose time is known, and those that wait for an answer to an earlier one.

    waiting: sent one at a time, think_ns after a request has ended (their own `t` is ignored).
    send_until: nothing is sent from then on. cut_at: whatever is unfinished then is cut off.
    """

    sent: list[Arrival]
    waiting: deque[Arrival] = field(default_factory=deque)
    think_ns: int = 0
    send_until: int | None = None
    cut_at: int | None = None

    def follow_up(self, t_end: int) -> Arrival | None:
        """The request that is sent because one ended at `t_end`, if any."""
        t = t_end + self.think_ns
        if not self.waiting or (self.send_until is not None and t >= self.send_until):
            return None
        return replace(self.waiting.popleft(), t=t)


@dataclass(frozen=True)
class ClosedLoop:
    """`users` clients that each send their next request when the last one has ended.

    prompt_tokens, output_tokens: the same for all. requests: how many in all. stagger_ns: user i
    starts i * stagger_ns late, so that their prompts do not move in lockstep. think_ns: pause
    between an answer and the next request.
    """

    users: int
    requests: int
    prompt_tokens: int
    output_tokens: int
    stagger_ns: int = 0
    think_ns: int = 0
    class_name: str = "default"

    def __post_init__(self) -> None:
        for name in ("users", "requests", "prompt_tokens", "output_tokens"):
            require_int("ClosedLoop", name, getattr(self, name), 1)
        require_int("ClosedLoop", "stagger_ns", self.stagger_ns, 0, MAX_STAMP)
        require_int("ClosedLoop", "think_ns", self.think_ns, 0, MAX_STAMP)

    def load(self) -> Load:
        one = Arrival(0, self.prompt_tokens, self.output_tokens, self.class_name)
        first = min(self.users, self.requests)
        sent = [replace(one, t=user * self.stagger_ns) for user in range(first)]
        return Load(sent, deque([one] * (self.requests - first)), self.think_ns)


def as_load(workload: Any) -> Load:
    """A Load from a ClosedLoop, a `measure.workload.Workload`, or an iterable of arrivals."""
    if isinstance(workload, Load):
        return workload
    if isinstance(workload, ClosedLoop):
        return workload.load()
    if hasattr(workload, "requests") and hasattr(workload, "arrivals"):
        return _from_workload(workload)
    return Load(as_arrivals(workload))


def _from_workload(workload: Any) -> Load:
    """Lengths, stamps, cancellations and the stopping rule of a measure.workload.Workload."""
    arrivals = [
        Arrival(
            planned.t_sched_ns or 0,
            planned.prompt_tokens,
            planned.output_tokens,
            planned.class_name,
            cancel_after_ns=planned.cancel_after_ns,
            cancel_after_tokens=planned.cancel_after_tokens,
        )
        for planned in workload.requests()
    ]
    if not arrivals:
        raise ValueError(f"the workload {workload.name!r} sends nothing: nothing to simulate")
    stop = workload.stop
    until = None if stop.duration_s is None else round(stop.duration_s * 1e9)
    load = Load(arrivals, send_until=until, cut_at=None if stop.drain else until)
    if workload.closed_loop:
        users = workload.arrivals.concurrency
        load.sent, load.waiting = arrivals[:users], deque(arrivals[users:])
    return load


def as_arrivals(workload: Iterable[Any]) -> list[Arrival]:
    """Arrivals in order of time, from Arrival objects or (t_ns, prompt, output[, class]) rows."""
    arrivals = []
    for number, row in enumerate(workload):
        try:
            arrivals.append(row if isinstance(row, Arrival) else Arrival(*row))
        except (TypeError, ValueError) as error:
            raise ValueError(f"workload[{number}] = {row!r}: {error}") from error
    if not arrivals:
        raise ValueError("the workload is empty: give at least one request")
    arrivals.sort(key=lambda arrival: arrival.t)  # stable: equal stamps keep their order
    return arrivals


def poisson_arrivals(
    rate: float,
    requests: int,
    classes: Sequence[tuple[str, int, int]],
    seed: int = 0,
) -> list[Arrival]:
    """Poisson arrivals at `rate` requests/s of (class, prompt, output) in equal shares, shuffled.

    The gaps are scaled so that the last request is sent at exactly (requests - 1) / rate: the
    realized rate is the rate asked for, at every seed.
    """
    ok = is_real(rate) and rate > 0
    require(ok, "poisson_arrivals", "rate", rate, "a finite number of requests/s > 0")
    require_int("poisson_arrivals", "requests", requests, 1)
    require(len(classes) > 0, "poisson_arrivals", "classes", classes, "a non-empty list")
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(1.0, size=requests)
    gaps[0] = 0.0
    stamps = np.cumsum(gaps)
    scale = (requests - 1) / rate / stamps[-1] if requests > 1 else 1.0
    order = rng.permutation(np.arange(requests) % len(classes))
    return [
        Arrival(round(float(t) * scale * 1e9), classes[c][1], classes[c][2], classes[c][0])
        for t, c in zip(stamps, order, strict=True)
    ]

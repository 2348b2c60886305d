"""Drives a workload against an in-process engine and returns the trace of that run alone.

One thread: requests are handed over between steps. In an open loop a request that falls due
during a step is therefore sent late; the record keeps both stamps, `dispatch_delay` shows the
lag, and latencies from the schedule hide none of it. This module does not import the engine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Protocol

from llmlab.measure.workload import PlannedRequest, Workload
from llmlab.sched.request import SamplingParams
from llmlab.trace import RequestRecord, Trace

IDLE_STEPS = 1000  # steps in a row that plan nothing while requests wait: a stuck scheduler
NAP_S = 0.05  # longest sleep between looks at the stop event


class Output(Protocol):
    """What a step gives one request."""

    @property
    def request_id(self) -> str: ...
    @property
    def token_ids(self) -> list[int]: ...
    @property
    def finish_reason(self) -> str | None: ...


class EngineLike(Protocol):
    """What a run needs of an engine; `llmlab.engine.Engine` has it."""

    trace: Trace

    @property
    def clock(self) -> Callable[[], int]: ...
    @property
    def has_work(self) -> bool: ...
    def add(
        self,
        prompt: Sequence[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        class_name: str = "default",
        t_sched: int | None = None,
        t_send: int | None = None,
    ) -> str: ...
    def step(self) -> Sequence[Output]: ...
    def abort(self, request_id: str) -> bool: ...


def run_workload(
    engine: EngineLike,
    workload: Workload,
    *,
    progress: Callable[[int, int], None] | None = None,
    stop: threading.Event | None = None,
    vocab_size: int | None = None,
    num_warmups: int = 0,
    sleep: Callable[[float], None] = time.sleep,
) -> Trace:
    """Send the workload's requests, step the engine until they are over, return their trace.

    progress(over, planned) is called when a request is over. stop: set it to end the run; what is
    in flight is cancelled (reason "run_ended"). num_warmups: requests with prompts of their own
    that run before the clock starts and are not in the trace returned. vocab_size: of the random
    prompts, by default the model's. sleep: seconds, on the engine's clock.
    Output length is forced (ignore_eos). A request the engine refuses is "rejected" in the trace.
    """
    vocab = _vocab_size(engine) if vocab_size is None else vocab_size
    planned = workload.requests()
    _warm_up(engine, planned[:num_warmups], len(planned), vocab)
    return _Run(engine, workload, planned, vocab, progress, stop, sleep).run()


class _Run:
    """The state of one run: what is still to be sent, what is in flight."""

    def __init__(
        self,
        engine: EngineLike,
        workload: Workload,
        planned: list[PlannedRequest],
        vocab_size: int,
        progress: Callable[[int, int], None] | None,
        stop: threading.Event | None,
        sleep: Callable[[float], None],
    ) -> None:
        self.engine, self.workload, self.planned = engine, workload, planned
        self.progress = progress or (lambda over, planned: None)
        self.stop = stop or threading.Event()
        self.sleep = sleep
        # Made beforehand, so that making a long prompt delays no send.
        self.prompts = [request.prompt_token_ids(vocab_size) for request in planned]
        self.prefix = _fresh_prefix(engine.trace)
        self.ids: list[str] = []  # sent, in order; the next to send is planned[len(ids)]
        self.flying: dict[str, PlannedRequest] = {}
        self.received: dict[str, int] = {}
        self.leaves: dict[str, int] = {}  # request id -> when its client leaves, ns
        self.first_step = len(engine.trace.steps)
        self.start = self.end = engine.clock()

    def run(self) -> Trace:
        idle = 0
        try:
            while not self.stop.is_set() and not self._time_is_up():
                self._send_due()
                self._cancel_due()
                if self.engine.has_work:
                    steps = len(self.engine.trace.steps)
                    self._take(self.engine.step())
                    idle = idle + 1 if len(self.engine.trace.steps) == steps else 0
                    self._refuse_to_idle(idle)
                elif (due := self._next_due()) is not None:
                    self.sleep(min(NAP_S, max(0, due - self.engine.clock()) / 1e9))
                else:
                    break
            self.end = self.engine.clock()
        finally:  # also on Ctrl-C: leave no request behind in the engine
            for request_id in self.flying:
                self._abort(request_id, "run_ended")
        if self.engine.has_work:  # a step under way, whose tokens are nobody's now
            self.engine.step()
        return self._trace()

    # ------------------------------------------------------------ sending

    def _send_due(self) -> None:
        while (due := self._next_send()) is not None and due <= self.engine.clock():
            self._send(due)

    def _next_send(self) -> int | None:
        """When the next request is due; None if none is (any more, or while all clients wait)."""
        i = len(self.ids)
        if i == len(self.planned):
            return None
        t_sched = self.planned[i].t_sched_ns
        if t_sched is not None:
            return self.start + t_sched
        arrivals = self.workload.arrivals
        free = arrivals.kind == "closed" and len(self.flying) < arrivals.concurrency
        return self.engine.clock() if free and not self._past_duration() else None

    def _send(self, due: int) -> None:
        i = len(self.ids)
        request, request_id = self.planned[i], f"{self.prefix}{i}"
        self.ids.append(request_id)
        now = self.engine.clock()
        # A client of a closed loop has no schedule: it means to send when it does.
        t_sched = now if request.t_sched_ns is None else due
        params = SamplingParams(max_tokens=request.output_tokens, ignore_eos=True)
        try:
            self.engine.add(
                self.prompts[i],
                params,
                request_id=request_id,
                class_name=request.class_name,
                t_sched=t_sched,
                t_send=now,
            )
        except ValueError:
            record = self.engine.trace.requests.get(request_id)
            if record is None or record.outcome != "rejected":
                raise  # not a refusal by the engine: an error of ours
            record.prompt_tokens, record.max_tokens = request.prompt_tokens, request.output_tokens
            self._report()
            return
        self.flying[request_id] = request
        self.received[request_id] = 0
        if request.cancel_after_ns is not None:
            self.leaves[request_id] = now + request.cancel_after_ns

    # ------------------------------------------------------------ ending

    def _take(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            request = self.flying.get(output.request_id)
            if request is None:
                continue
            self.received[output.request_id] += len(output.token_ids)
            limit = request.cancel_after_tokens
            if output.finish_reason is not None:
                self._over(output.request_id)
            elif limit is not None and self.received[output.request_id] >= limit:
                self._leave(output.request_id)

    def _cancel_due(self) -> None:
        now = self.engine.clock()
        for request_id in [name for name, at in self.leaves.items() if at <= now]:
            self._leave(request_id)

    def _leave(self, request_id: str) -> None:
        """Its client goes, as the workload says."""
        self._abort(request_id, "scripted")
        self._over(request_id)

    def _abort(self, request_id: str, reason: str) -> None:
        if self.engine.abort(request_id):
            self.engine.trace.requests[request_id].reason = reason

    def _over(self, request_id: str) -> None:
        del self.flying[request_id]
        self.leaves.pop(request_id, None)
        self._report()

    def _report(self) -> None:
        self.progress(len(self.ids) - len(self.flying), len(self.planned))

    def _past_duration(self) -> bool:
        limit = self.workload.stop.duration_s
        return limit is not None and self.engine.clock() - self.start >= limit * 1e9

    def _time_is_up(self) -> bool:
        return not self.workload.stop.drain and self._past_duration()

    def _next_due(self) -> int | None:
        """The next stamp at which this run has something to do."""
        stamps = [*self.leaves.values()]
        due = self._next_send()
        return min(stamps if due is None else [*stamps, due], default=None)

    def _refuse_to_idle(self, idle: int) -> None:
        if idle >= IDLE_STEPS:
            raise RuntimeError(
                f"the scheduler planned nothing in {idle} steps in a row while "
                f"{len(self.flying)} requests wait: it is stuck"
            )

    def _trace(self) -> Trace:
        whole = self.engine.trace
        requests = {name: whole.requests[name] for name in self.ids} | self._never_sent()
        meta: dict[str, Any] = {
            **whole.meta,
            "workload": self.workload.to_dict(),
            "planned": len(self.planned),
            "submitted": len(requests),
            "t_start": self.start,
        }
        return Trace(meta=meta, requests=requests, steps=whole.steps[self.first_step :])

    def _never_sent(self) -> dict[str, RequestRecord]:
        """Requests that were due when the run was cut off: they are in the books too."""
        late: dict[str, RequestRecord] = {}
        for request in self.planned[len(self.ids) :]:
            if request.t_sched_ns is None or self.start + request.t_sched_ns > self.end:
                break
            name = f"{self.prefix}{request.index}"
            late[name] = RequestRecord(
                request_id=name,
                class_name=request.class_name,
                prompt_tokens=request.prompt_tokens,
                max_tokens=request.output_tokens,
                t_sched=self.start + request.t_sched_ns,
                outcome="cancelled_before_send",
                reason="run_ended",
                t_end=self.end,
            )
        return late


def _warm_up(engine: EngineLike, like: list[PlannedRequest], base: int, vocab_size: int) -> None:
    """Run requests like these to their end, with other prompts, so that no prefix is hot."""
    prefix = _fresh_prefix(engine.trace)
    for i, request in enumerate(like):
        other = replace(request, index=base + i)
        params = SamplingParams(max_tokens=request.output_tokens, ignore_eos=True)
        engine.add(other.prompt_token_ids(vocab_size), params, request_id=f"{prefix}{i}")
        while engine.has_work:
            engine.step()


def _fresh_prefix(trace: Trace) -> str:
    """ "run0-", "run1-", ...: the first that no request of this engine has."""
    names = (f"run{i}-" for i in count())
    return next(p for p in names if not any(name.startswith(p) for name in trace.requests))


def _vocab_size(engine: Any) -> int:
    return int(engine.model.config.vocab_size)

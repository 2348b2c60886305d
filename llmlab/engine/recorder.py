"""Writes what an engine does into a trace. Stamps come from the caller; no torch, no clock."""

from __future__ import annotations

from collections.abc import Iterable

from llmlab.sched.plan import Scheduler, StepPlan
from llmlab.sched.request import Request
from llmlab.trace import RequestRecord, StepRecord, TokenEvent, Trace


class Recorder:
    """One method a thing that can happen. The trace is complete after every call."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._last_end = 0

    def queued(self, record: RequestRecord, request: Request, now: int) -> None:
        """The engine took the request."""
        record.prompt_tokens = request.num_prompt_tokens
        record.max_tokens = request.max_tokens or request.params.max_tokens
        record.t_queued = now
        self.trace.requests[record.request_id] = record

    def rejected(self, record: RequestRecord, reason: str, now: int) -> None:
        """The request was refused at the door. A second use of an id gets a name of its own."""
        name, copy = record.request_id, 2
        while record.request_id in self.trace.requests:
            record.request_id = f"{name} ({copy})"
            copy += 1
        record.outcome, record.reason, record.t_end = "rejected", reason, now
        self.trace.requests[record.request_id] = record

    def planned(self, plan: StepPlan, start: int) -> StepRecord:
        """Before the forward pass: who computes what, while the counts are still the old ones."""
        for request in plan.preempted:
            self.trace.requests[request.request_id].preemptions.append((start, None))
        for request, _ in plan.scheduled:
            record = self.trace.requests[request.request_id]
            if record.t_first_scheduled is None:
                record.t_first_scheduled = start
                record.cached_tokens = request.num_cached_tokens
            if record.preemptions and record.preemptions[-1][1] is None:
                record.preemptions[-1] = (record.preemptions[-1][0], start)
        return StepRecord(
            index=0,
            t_start=start,
            t_end=start,
            scheduled=[
                (r.request_id, n, r.num_computed_tokens, r.decodes) for r, n in plan.scheduled
            ],
            preempted=[r.request_id for r in plan.preempted],
            cache_hit_tokens=plan.cache_hit_tokens,
        )

    def committed(self, step: StepRecord, scheduler: Scheduler) -> None:
        """The state of the pool after the step."""
        step.blocks_used = scheduler.num_blocks_used
        step.num_running = scheduler.num_running
        step.num_waiting = scheduler.num_waiting

    def stepped(self, step: StepRecord, emitted: Iterable[str], now: int) -> None:
        """Its tokens are here: one for each id in `emitted`."""
        for request_id in emitted:
            self.trace.requests[request_id].events.append(TokenEvent(now))
        # Launched while the one before was running: its own time begins where that one ends.
        step.t_start, step.t_end = max(step.t_start, self._last_end), now
        self._last_end = now
        # A long-running server forgets its oldest steps; numbers are never used twice.
        step.index = self.trace.steps[-1].index + 1 if self.trace.steps else 0
        self.trace.steps.append(step)

    def finished(self, request: Request, now: int) -> None:
        """The request ended, for whatever reason it states itself."""
        record = self.trace.requests[request.request_id]
        record.completion_tokens = len(request.output_token_ids)
        record.count_source = "engine"
        record.finish_reason = request.finish_reason
        record.outcome = "cancelled" if request.finish_reason == "abort" else "completed"
        record.t_end = now

    def failed(self, request: Request, reason: str, now: int) -> None:
        """The request could not be computed."""
        self.finished(request, now)
        record = self.trace.requests[request.request_id]
        record.outcome, record.reason = "failed", reason

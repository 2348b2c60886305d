"""The real scheduler under a virtual clock.

The loop is the engine's, with the forward pass replaced by a predicted duration and the tokens
by a length: every request writes exactly `output_tokens` tokens. Time to first token therefore
has the same parts as on a server:

    send --network--> front end (one at a time) --queue--> first step ... step end --network--> seen
         t_send                              t_queued   t_first_scheduled              event.t

This module does not know how a duration is predicted (sim.step_time) nor what a metric is. No
torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from llmlab.perf.cost import StepShape, plan_shape
from llmlab.sched.plan import Scheduler, StepPlan
from llmlab.sched.request import Request, SamplingParams
from llmlab.sim.load import Arrival, ClosedLoop, as_arrivals
from llmlab.sim.step_time import NS, Constants
from llmlab.trace import RequestRecord, StepRecord, TokenEvent, Trace

NOTE = "simulated: durations are predicted by a cost model, nothing was run"


class Clock(Protocol):
    """What the loop asks of a step-time model."""

    constants: Constants

    def step_ns(self, shape: StepShape) -> int: ...

    def decode_run_ns(self, num_requests: int, kv_read: int, steps: int) -> NDArray[np.int64]: ...


class Simulator:
    """One simulated server. `run` may be called once.

    record_steps=False leaves the step records out (the requests' stamps stay exact).
    leap=False takes every step on its own; the result is the same, only slower.
    """

    def __init__(
        self, scheduler: Scheduler, clock: Clock, record_steps: bool = True, leap: bool = True
    ) -> None:
        self.scheduler = scheduler
        self.clock = clock
        self.record_steps = record_steps
        self.leap = leap and hasattr(scheduler, "steps_until_change")
        self.trace = Trace()
        self.now = 0
        self._network = round(clock.constants.network * NS)
        self._preprocess = clock.constants.preprocess * NS
        self._per_token = clock.constants.preprocess_per_token * NS
        self._front_end_free = 0
        self._sends: list[tuple[int, int, Arrival]] = []  # heap: (t_send, order, arrival)
        self._ready: deque[tuple[int, Request]] = deque()  # (t_queued, request), in order
        self._sent = 0
        self._loop: ClosedLoop | None = None
        self._steps = 0
        self._prompts: dict[int, list[int]] = {}

    def run(self, load: Iterable[Any] | ClosedLoop) -> Trace:
        """Serve the whole load and return its trace."""
        self._loop = load if isinstance(load, ClosedLoop) else None
        for arrival in load.first() if isinstance(load, ClosedLoop) else as_arrivals(load):
            self._send(arrival)
        while self._wait_for_work():
            if not (self.leap and self._take_run()):
                self._take_step()
        return self.trace

    # -- arrivals ---------------------------------------------------------------------------

    def _send(self, arrival: Arrival) -> None:
        heappush(self._sends, (arrival.t, self._sent, arrival))
        self._sent += 1

    def _wait_for_work(self) -> bool:
        """Queue what has arrived by now; jump to the next arrival if idle. False: all done."""
        while True:
            self._arrive()
            if self.scheduler.has_work:
                return True
            upcoming = self._next_arrival()
            if upcoming is None:
                return False
            self.now = max(self.now, upcoming)

    def _next_arrival(self) -> int | None:
        """When something can next reach the scheduler; None if nothing is on its way."""
        if self._ready:
            return self._ready[0][0]
        return self._sends[0][0] if self._sends else None

    def _arrive(self) -> None:
        """Move requests sent by now through the front end, and those done there to the queue."""
        while self._sends and self._sends[0][0] <= self.now:
            _, order, arrival = heappop(self._sends)
            self._ready.append(self._preprocessed(order, arrival))
        while self._ready and self._ready[0][0] <= self.now:
            _, request = self._ready.popleft()
            try:
                self.scheduler.add(request)
            except ValueError as error:
                record = self.trace.requests[request.request_id]
                record.outcome, record.reason = "rejected", str(error)
                self._over(record, self.now)

    def _preprocessed(self, order: int, arrival: Arrival) -> tuple[int, Request]:
        work = round(self._preprocess + self._per_token * arrival.prompt_tokens)
        start = max(arrival.t + self._network, self._front_end_free)
        self._front_end_free = queued = start + work
        name = f"r{order}"
        self.trace.requests[name] = RequestRecord(
            request_id=name,
            class_name=arrival.class_name,
            prompt_tokens=arrival.prompt_tokens,
            max_tokens=arrival.output_tokens,
            t_sched=arrival.t,
            t_send=arrival.t,
            t_queued=queued,
            completion_tokens=0,
            count_source="simulated",
        )
        params = SamplingParams(max_tokens=arrival.output_tokens, ignore_eos=True)
        request = Request(name, self._prompt(order, arrival), params, priority=arrival.priority)
        return queued, request

    def _prompt(self, order: int, arrival: Arrival) -> list[int]:
        """Token ids; without ids of its own a prompt shares nothing with any other."""
        if arrival.prompt_token_ids is not None:
            return list(arrival.prompt_token_ids)
        if self.scheduler.config.enable_prefix_caching:
            return [order] * arrival.prompt_tokens
        # Nobody reads the ids, so prompts of one length can be one list.
        return self._prompts.setdefault(arrival.prompt_tokens, [0] * arrival.prompt_tokens)

    def _over(self, record: RequestRecord, t: int) -> None:
        record.t_end = t + self._network
        loop = self._loop
        if loop is not None and self._sent < loop.requests:
            self._send(loop.arrival(record.t_end + loop.think_ns))

    # -- steps ------------------------------------------------------------------------------

    def _take_step(self) -> None:
        """Plan, let the predicted time pass, commit, record."""
        scheduler = self.scheduler
        plan = scheduler.plan()
        if not plan.scheduled:
            raise RuntimeError("the scheduler has work but planned nothing: it can never go on")
        shape = plan_shape(plan)
        start, self.now = self.now, self.now + self.clock.step_ns(shape)
        self._mark_scheduled(plan, start)
        sampled = plan.sampled
        step = self._step_record(plan, start) if self.record_steps else None
        finished = scheduler.commit(plan, [0] * len(sampled))
        if step is not None:
            step.blocks_used = scheduler.num_blocks_used
            step.num_running = scheduler.num_running
            step.num_waiting = scheduler.num_waiting
        self._steps += 1
        self._emit(sampled, [TokenEvent(self.now + self._network)])
        for request in finished:
            self._finish(request)

    def _mark_scheduled(self, plan: StepPlan, start: int) -> None:
        requests = self.trace.requests
        for request in plan.preempted:
            requests[request.request_id].preemptions.append((start, None))
        for request, _ in plan.scheduled:
            record = requests[request.request_id]
            if record.t_first_scheduled is None:
                record.t_first_scheduled = start
                record.cached_tokens = request.num_cached_tokens
            elif record.preemptions and record.preemptions[-1][1] is None:
                record.preemptions[-1] = (record.preemptions[-1][0], start)

    def _step_record(self, plan: StepPlan, start: int) -> StepRecord:
        step = StepRecord(
            index=self._steps,
            t_start=start,
            t_end=self.now,
            scheduled=[
                (r.request_id, n, r.num_computed_tokens, r.decodes) for r, n in plan.scheduled
            ],
            preempted=[r.request_id for r in plan.preempted],
            cache_hit_tokens=plan.cache_hit_tokens,
        )
        self.trace.steps.append(step)
        return step

    def _emit(self, requests: Iterable[Request], events: list[TokenEvent]) -> None:
        """Give each request these events; requests of one step share the event objects."""
        records = self.trace.requests
        for request in requests:
            record = records[request.request_id]
            record.events.extend(events)
            record.completion_tokens = (record.completion_tokens or 0) + len(events)

    def _finish(self, request: Request) -> None:
        record = self.trace.requests[request.request_id]
        record.outcome, record.finish_reason = "completed", request.finish_reason
        self._over(record, self.now)

    def _take_run(self) -> bool:
        """Many decode steps at once, if nothing changes meanwhile. False: take one step."""
        return False


SchedulerFactory = Callable[[Any], Scheduler]

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

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from llmlab.perf.cost import StepShape, plan_shape
from llmlab.sched.plan import Scheduler, StepPlan
from llmlab.sched.request import Request, SamplingParams
from llmlab.sim.load import Arrival, as_load
from llmlab.sim.step_time import NS, Constants
from llmlab.trace import RequestRecord, StepRecord, TokenEvent, Trace

NOTE = "simulated: durations are predicted by a cost model, nothing was run"
CLIENT_LEFT, RUN_ENDED = "client_left", "run_ended"
SHORTEST_RUN = 3  # steps; shorter runs cost more to prepare than they save


class Clock(Protocol):
    """What the loop asks of a step-time model."""

    constants: Constants

    def step_ns(self, shape: StepShape) -> int: ...

    def decode_run_ns(self, num_requests: int, kv_read: int, steps: int) -> NDArray[np.int64]: ...


@dataclass(slots=True, eq=False)
class _Live:
    """A request that is somewhere between its send and its end."""

    record: RequestRecord
    request: Request
    arrival: Arrival
    queued: bool = False


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
        self._front_end_free = 0
        # What will happen: (when the server learns of it, order, what to do, with what).
        self._agenda: list[tuple[int, int, Callable[[int, Any], None], Any]] = []
        self._entries = 0
        self._live: dict[str, _Live] = {}
        self._prompts: dict[int, list[int]] = {}
        self._leaves_after: dict[str, int] = {}  # tokens after which a client leaves
        self._steps = 0
        self._last_step = 0  # how long it took, ns

    def run(self, workload: Any) -> Trace:
        """Serve the whole workload (anything `as_load` takes) and return its trace."""
        self._load = as_load(workload)
        for arrival in self._load.sent:
            self._at(arrival.t, self._send, arrival)
        if self._load.cut_at is not None:
            self._at(self._load.cut_at, self._cut, None)
        while self._wait_for_work():
            if not (self.leap and self._take_run()):
                self._take_step()
        return self.trace

    # -- what comes from outside ------------------------------------------------------------

    def _at(self, t: int, act: Callable[[int, Any], None], what: Any) -> None:
        heappush(self._agenda, (t, self._entries, act, what))
        self._entries += 1

    def _catch_up(self) -> None:
        """Let everything happen that happened outside by now, in the order of time."""
        while self._agenda and self._agenda[0][0] <= self.now:
            t, _, act, what = heappop(self._agenda)
            act(t, what)

    def _wait_for_work(self) -> bool:
        """Catch up; jump to what happens next while idle. False: all is done."""
        self._catch_up()
        while not self.scheduler.has_work:
            if not self._agenda:
                return False
            self.now = max(self.now, self._agenda[0][0])
            self._catch_up()
        return True

    def _send(self, t: int, arrival: Arrival) -> None:
        """A client sends; the front end takes requests one at a time."""
        name = f"r{len(self.trace.requests)}"
        constants = self.clock.constants
        work = constants.preprocess + constants.preprocess_per_token * arrival.prompt_tokens
        start = max(t + self._network, self._front_end_free)
        self._front_end_free = queued = start + round(work * NS)
        record = RequestRecord(
            request_id=name,
            class_name=arrival.class_name,
            prompt_tokens=arrival.prompt_tokens,
            max_tokens=arrival.output_tokens,
            t_sched=t,
            t_send=t,
            t_queued=queued,
            completion_tokens=0,
            count_source="simulated",
        )
        params = SamplingParams(max_tokens=arrival.output_tokens, ignore_eos=True)
        request = Request(name, self._prompt(arrival), params, priority=arrival.priority)
        self.trace.requests[name] = record
        self._live[name] = live = _Live(record, request, arrival)
        self._at(queued, self._queue, live)
        if arrival.cancel_after_ns is not None:
            left = t + arrival.cancel_after_ns
            self._at(left + self._network, self._leave, (live, left, CLIENT_LEFT))
        if arrival.cancel_after_tokens is not None:
            self._leaves_after[name] = arrival.cancel_after_tokens

    def _prompt(self, arrival: Arrival) -> list[int]:
        """Token ids; without ids of its own a prompt shares nothing with any other."""
        if arrival.prompt_token_ids is not None:
            return list(arrival.prompt_token_ids)
        if self.scheduler.config.enable_prefix_caching:
            return [len(self.trace.requests)] * arrival.prompt_tokens
        # Nobody reads the ids, so prompts of one length can be one list.
        return self._prompts.setdefault(arrival.prompt_tokens, [0] * arrival.prompt_tokens)

    def _queue(self, t: int, live: _Live) -> None:
        """The front end hands a request to the scheduler, which may refuse it."""
        if live.request.request_id not in self._live:
            return  # its client left meanwhile
        try:
            self.scheduler.add(live.request)
            live.queued = True
        except ValueError as error:
            live.record.outcome, live.record.reason = "rejected", str(error)
            live.record.t_queued = None
            self._over(live, t + self._network)

    def _leave(self, t: int, what: tuple[_Live, int, str]) -> None:
        """A client is gone since `left`; what was sent to it after that reached nobody."""
        live, left, reason = what
        record, name = live.record, live.request.request_id
        if name not in self._live:
            return
        if live.queued:
            self.scheduler.abort(name)
        else:
            record.t_queued = None
        while record.events and record.events[-1].t > left:
            record.events.pop()
        record.completion_tokens = len(record.events)
        record.outcome, record.finish_reason, record.reason = "cancelled", "abort", reason
        self._over(live, left)

    def _cut(self, t: int, what: None) -> None:
        """The run ends: nothing more is sent, and what is unfinished is cut off."""
        self._load.waiting.clear()
        self._agenda.clear()
        for live in list(self._live.values()):
            self._leave(t, (live, t, RUN_ENDED))

    def _over(self, live: _Live, t_end: int) -> None:
        name = live.request.request_id
        live.record.t_end = t_end
        del self._live[name]
        self._leaves_after.pop(name, None)
        follower = self._load.follow_up(t_end)
        if follower is not None:
            self._at(follower.t, self._send, follower)

    # -- steps ------------------------------------------------------------------------------

    def _take_step(self) -> None:
        """Plan, let the predicted time pass, commit, record."""
        scheduler = self.scheduler
        plan = scheduler.plan()
        if not plan.scheduled:
            raise RuntimeError("the scheduler has work but planned nothing: it can never go on")
        self._last_step = self.clock.step_ns(plan_shape(plan))
        start, self.now = self.now, self.now + self._last_step
        self._mark_scheduled(plan, start)
        sampled = plan.sampled
        step = self._step_record(plan, start) if self.record_steps else None
        self._catch_up()  # clients that left during the step get nothing from it
        finished = scheduler.commit(plan, [0] * len(sampled))
        if step is not None:
            self._note_state(step)
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

    def _note_state(self, step: StepRecord) -> None:
        step.blocks_used = self.scheduler.num_blocks_used
        step.num_running = self.scheduler.num_running
        step.num_waiting = self.scheduler.num_waiting

    def _emit(self, requests: Iterable[Request], events: list[TokenEvent]) -> None:
        """Give each live request these events; requests of one step share the event objects."""
        for request in requests:
            live = self._live.get(request.request_id)
            if live is None:
                continue
            record = live.record
            record.events.extend(events)
            record.completion_tokens = len(record.events)
            limit = self._leaves_after.get(request.request_id)
            if limit is not None and len(record.events) >= limit:
                del self._leaves_after[request.request_id]
                left = record.events[limit - 1].t
                self._at(left + self._network, self._leave, (live, left, CLIENT_LEFT))

    def _finish(self, request: Request) -> None:
        live = self._live.get(request.request_id)
        if live is not None:
            live.record.outcome, live.record.finish_reason = "completed", request.finish_reason
            self._over(live, self.now + self._network)

    # -- many steps at once -----------------------------------------------------------------

    def _take_run(self) -> bool:
        """Take the decode steps before the next change at once. False: take one step instead.

        Exactly what as many calls of `_take_step` do: the run ends before the step in which
        anything could come from outside, end, begin or be preempted.
        """
        if self._agenda and self._agenda[0][0] - self.now < SHORTEST_RUN * self._last_step:
            return False  # not sure to be worth asking
        scheduler: Any = self.scheduler
        steps = scheduler.steps_until_change()
        if steps < SHORTEST_RUN:
            return False
        decoding: list[Request] = list(scheduler.decoding)
        if self._leaves_after:
            steps = min(steps, self._steps_until_leave(decoding))
        kv_read = sum(r.num_computed_tokens for r in decoding) + len(decoding)
        durations = self.clock.decode_run_ns(len(decoding), kv_read, steps)
        ends = self.now + np.cumsum(durations)  # [steps]
        if self._agenda:
            steps = int(np.searchsorted(ends, self._agenda[0][0], side="left"))
        if steps < SHORTEST_RUN:
            return False
        stamps: list[int] = ends[:steps].tolist()
        computed = [r.num_computed_tokens for r in decoding]
        used = scheduler.advance(steps, [[0] * steps] * len(decoding))
        if self.record_steps:
            self._record_run(decoding, computed, stamps, used)
        self._steps += steps
        self._last_step = int(durations[steps - 1])
        self.now = stamps[-1]
        self._emit(decoding, [TokenEvent(t + self._network) for t in stamps])
        return True

    def _steps_until_leave(self, decoding: list[Request]) -> int:
        """Steps until a client has all the tokens it stays for."""
        left = (
            self._leaves_after[r.request_id] - len(r.output_token_ids)
            for r in decoding
            if r.request_id in self._leaves_after
        )
        return min(left, default=2**31)

    def _record_run(
        self, decoding: list[Request], computed: list[int], stamps: list[int], used: list[int]
    ) -> None:
        names = [r.request_id for r in decoding]
        waiting = self.scheduler.num_waiting
        start = self.now
        for index, (t, blocks) in enumerate(zip(stamps, used, strict=True)):
            scheduled = [(n, 1, c + index, True) for n, c in zip(names, computed, strict=True)]
            self.trace.steps.append(
                StepRecord(
                    index=self._steps + index,
                    t_start=start,
                    t_end=t,
                    scheduled=scheduled,
                    blocks_used=blocks,
                    num_running=len(names),
                    num_waiting=waiting,
                )
            )
            start = t

"""One simulated engine: the real scheduler, with a predicted duration in place of the model.

    begin()       plan the next step, or foresee a run of decode steps; `busy_until` says till when
    interrupt(t)  something comes from outside at t: a foreseen run ends with the step under way
    end()         at `busy_until`: commit, hand out tokens, write the records

Who sends requests, and who else serves, is the world's business. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from llmlab.perf.cost import StepShape, plan_shape
from llmlab.sched.plan import Scheduler, StepPlan
from llmlab.sched.request import Request
from llmlab.sim.step_time import Constants
from llmlab.sim.world import World
from llmlab.trace import StepRecord, TokenEvent

SHORTEST_RUN = 3  # steps; shorter runs cost more to prepare than they save


class Clock(Protocol):
    """What a server asks of a step-time model."""

    constants: Constants

    def step_ns(self, shape: StepShape) -> int:
        """How long one step lasts, ns, at least 1."""
        ...

    def decode_run_ns(self, num_requests: int, kv_read: int, steps: int) -> NDArray[np.int64]:
        """The same [steps] for a run of decodes; see `StepTime.decode_run_ns`."""
        ...


@dataclass(slots=True)
class _Run:
    """A run of decode steps that nothing was known to disturb when it began."""

    start: int
    decoding: list[Request]
    ends: NDArray[np.int64]  # [steps], when each step ends


class NothingPlanned(RuntimeError):
    """A scheduler that has work gave nobody a token."""


@dataclass(slots=True)
class _Step:
    """One planned step under way."""

    start: int
    plan: StepPlan
    sampled: list[Request]
    record: StepRecord | None


class Server:
    """A scheduler under the clock of a world.

    record_steps=False leaves the step records out (the requests' stamps stay exact).
    leap=False takes every step on its own; the result is the same, only slower.
    worker: its name in the step records, where there are several.
    """

    def __init__(
        self,
        world: World,
        scheduler: Scheduler,
        clock: Clock,
        record_steps: bool = True,
        leap: bool = True,
        worker: str = "",
    ) -> None:
        self.world = world
        self.scheduler = scheduler
        self.clock = clock
        self.record_steps = record_steps
        self.worker = worker
        self.leap = leap and hasattr(scheduler, "steps_until_change")
        self.busy_until: int | None = None  # end of what is under way; None: idle
        self._doing: _Step | _Run | None = None
        self._steps = 0
        self._last_step = 0  # how long it took, ns

    def begin(self, horizon: int | None = None) -> int:
        """Start now; returns the end. horizon: when something is known to come from outside."""
        run = self._foresee(horizon) if self.leap else None
        if run is None:
            return self._begin_step(self.world.now)
        self._doing, self.busy_until = run, int(run.ends[-1])
        return self.busy_until

    def interrupt(self, t: int) -> None:
        """Something comes at `t`: take the steps that are over, plan the one under way."""
        run = self._doing
        if not isinstance(run, _Run):
            return
        done = int(np.searchsorted(run.ends, t, side="left"))
        if done == len(run.ends):
            return
        if done:
            self._take(run, done)
        self._begin_step(int(run.ends[done - 1]) if done else run.start)

    def end(self) -> None:
        """The world's clock is at `busy_until`: what was under way is over."""
        doing, self._doing, self.busy_until = self._doing, None, None
        if isinstance(doing, _Run):
            self._take(doing, len(doing.ends))
        elif doing is not None:
            self._end_step(doing)

    # -- one step ----------------------------------------------------------------------------

    def _begin_step(self, start: int) -> int:
        plan = self.scheduler.plan()
        self._mark_scheduled(plan, start)
        while plan.preempted and not plan.scheduled:  # room was made; who may use it now?
            plan = self.scheduler.plan()
            self._mark_scheduled(plan, start)
        if not plan.scheduled:
            raise NothingPlanned("the scheduler has work but planned nothing: it can never go on")
        self._last_step = self.clock.step_ns(plan_shape(plan))
        record = self._step_record(plan, start) if self.record_steps else None
        self._doing = _Step(start, plan, plan.sampled, record)
        self.busy_until = start + self._last_step
        return self.busy_until

    def _mark_scheduled(self, plan: StepPlan, start: int) -> None:
        requests = self.world.trace.requests
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
            t_end=start + self._last_step,
            scheduled=[
                (r.request_id, n, r.num_computed_tokens, r.decodes) for r, n in plan.scheduled
            ],
            preempted=[r.request_id for r in plan.preempted],
            cache_hit_tokens=plan.cache_hit_tokens,
            worker=self.worker,
        )
        self.world.trace.steps.append(step)
        return step

    def _end_step(self, step: _Step) -> None:
        """Commit. Clients that left during the step get nothing from it."""
        self.world.computed(self, step.plan, step.start)
        finished = self.scheduler.commit(step.plan, [0] * len(step.sampled))
        if step.record is not None:
            step.record.blocks_used = self.scheduler.num_blocks_used
            step.record.num_running = self.scheduler.num_running
            step.record.num_waiting = self.scheduler.num_waiting
        self._steps += 1
        world = self.world
        world.emit(step.sampled, [TokenEvent(world.now + world.network)])
        for request in finished:
            world.finish(request)

    # -- many steps at once ------------------------------------------------------------------

    def _foresee(self, horizon: int | None) -> _Run | None:
        """The decode steps before the next change. None: take one step instead.

        Exactly what as many single steps do: the run ends before the step in which anything
        could come from outside (as far as the horizon tells), end, begin or be preempted.
        """
        now = self.world.now
        if horizon is not None and horizon - now < SHORTEST_RUN * self._last_step:
            return None  # not sure to be worth asking
        scheduler: Any = self.scheduler
        steps = scheduler.steps_until_change()
        if steps < SHORTEST_RUN:
            return None
        decoding: list[Request] = list(scheduler.decoding)
        if self.world.leaves_after:
            steps = min(steps, self._steps_until_leave(decoding))
        kv_read = sum(r.num_computed_tokens for r in decoding) + len(decoding)
        durations = self.clock.decode_run_ns(len(decoding), kv_read, steps)
        ends = now + np.cumsum(durations)  # [steps]
        if horizon is not None:
            steps = int(np.searchsorted(ends, horizon, side="left"))
        if steps < SHORTEST_RUN:
            return None
        return _Run(now, decoding, ends[:steps])

    def _steps_until_leave(self, decoding: list[Request]) -> int:
        """Steps until a client has all the tokens it stays for."""
        after = self.world.leaves_after
        left = (
            after[r.request_id] - len(r.output_token_ids) for r in decoding if r.request_id in after
        )
        return min(left, default=2**31)

    def _take(self, run: _Run, steps: int) -> None:
        """The first `steps` steps of a run are over."""
        scheduler: Any = self.scheduler
        stamps: list[int] = run.ends[:steps].tolist()
        computed = [r.num_computed_tokens for r in run.decoding]
        used = scheduler.advance(steps, [[0] * steps] * len(run.decoding))
        if self.record_steps:
            self._record_run(run, computed, stamps, used)
        self._steps += steps
        before = stamps[-2] if steps > 1 else run.start
        self._last_step = stamps[-1] - before
        network = self.world.network
        self.world.emit(run.decoding, [TokenEvent(t + network) for t in stamps])

    def _record_run(
        self, run: _Run, computed: list[int], stamps: list[int], used: list[int]
    ) -> None:
        names = [r.request_id for r in run.decoding]
        waiting = self.scheduler.num_waiting
        start = run.start
        for index, (t, blocks) in enumerate(zip(stamps, used, strict=True)):
            scheduled = [(n, 1, c + index, True) for n, c in zip(names, computed, strict=True)]
            self.world.trace.steps.append(
                StepRecord(
                    index=self._steps + index,
                    t_start=start,
                    t_end=t,
                    scheduled=scheduled,
                    blocks_used=blocks,
                    num_running=len(names),
                    num_waiting=waiting,
                    worker=self.worker,
                )
            )
            start = t

"""What a scheduler is: `plan()` says who computes how many tokens, `commit()` takes the result.

    plan = scheduler.plan()                 blocks are taken here
    tokens = run the model on plan.scheduled, one token for each request in plan.sampled
    finished = scheduler.commit(plan, tokens)

The real engine and the simulator drive the same two calls. No torch, no clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from llmlab.config import EngineConfig
from llmlab.sched.request import Request


@dataclass(slots=True)
class StepPlan:
    """What one step computes: `scheduled` holds (request, n tokens), each request once.

    `sampled`: the scheduled requests whose known tokens are all computed after this step, in
    the order of `scheduled`; exactly these get a new token. `preempted`: who lost its blocks for
    it. `cache_hit_tokens`: of those admitted, found in the prefix cache. `budget`: tokens left.
    `known_sampled`: a scheduler that knows `sampled` as it plans may put it here.
    """

    scheduled: list[tuple[Request, int]] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    cache_hit_tokens: int = 0
    budget: int = 0
    known_sampled: list[Request] | None = field(default=None, repr=False)

    def give(self, request: Request, n: int) -> None:
        """Schedule n tokens of a request, out of the budget."""
        self.scheduled.append((request, n))
        if self.known_sampled is not None and n == request.num_missing_tokens:
            self.known_sampled.append(request)
        self.budget -= n

    def take_back(self, request: Request) -> None:
        """If the request was given tokens in this very step, they are free again."""
        for index, (served, n) in enumerate(self.scheduled):
            if served is request:
                del self.scheduled[index]
                self.budget += n
                if self.known_sampled is not None and request in self.known_sampled:
                    self.known_sampled.remove(request)
                return

    @property
    def num_tokens(self) -> int:
        return sum(n for _, n in self.scheduled)

    @property
    def sampled(self) -> list[Request]:
        if self.known_sampled is not None:
            return self.known_sampled
        return [r for r, n in self.scheduled if r.num_computed_tokens + n == r.num_tokens]


class Scheduler(ABC):
    """Common ground of the policies; a learner's own scheduler subclasses this.

    takes_placeholders: whether `commit` may be told -1 for a token that is still on its way from
    the device. It appends it like any other; the engine puts the token in its place before the
    next commit, and calls `finish` if that token ends the request.
    """

    config: EngineConfig
    takes_placeholders: bool = False

    @abstractmethod
    def add(self, request: Request) -> None:
        """Accept a request, or raise ValueError if it can never run (with the number that fits)."""

    @abstractmethod
    def plan(self) -> StepPlan:
        """Choose this step's tokens and take their blocks. Empty only if nothing can run."""

    @abstractmethod
    def commit(self, plan: StepPlan, tokens: Sequence[int]) -> list[Request]:
        """Advance by the plan; `tokens[i]` belongs to `plan.sampled[i]`. Returns the finished.

        A request that was aborted since `plan()` is skipped: its token is dropped.
        """

    @abstractmethod
    def finish(self, request_id: str, reason: str, stop_reason: int | str | None = None) -> bool:
        """End a request in any state and free its blocks at once. False if it is unknown."""

    def abort(self, request_id: str) -> bool:
        """Cancel in any state; unknown or ended ids are no error. True if something ended."""
        return self.finish(request_id, "abort")

    def reset_prefix_cache(self) -> None:  # noqa: B027  nothing to do without a cache
        """Forget which blocks can be found by their content; blocks in use stay in use."""

    @property
    @abstractmethod
    def has_work(self) -> bool:
        """Has any accepted request not ended yet?"""

    @property
    @abstractmethod
    def num_running(self) -> int:
        """Requests that hold a seat: those a step may serve without admitting anyone."""

    @property
    @abstractmethod
    def num_waiting(self) -> int:
        """Requests in the queue, preempted ones too."""

    @property
    @abstractmethod
    def num_blocks_used(self) -> int:
        """KV blocks that somebody holds."""

    @abstractmethod
    def check_integrity(self) -> None:
        """Raise RuntimeError if a law of blocks or queues is broken. Callable at any time."""

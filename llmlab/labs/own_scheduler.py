"""A scheduler made of a learner's function, and the check of that function.

def plan_step(pending: list[Pending], budget: int) -> list[int]: ...
Own = scheduler_from(plan_step)      # drives the engine and the simulator like any other
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise

from llmlab.check.result import Result
from llmlab.labs.code_check import Try, check_code
from llmlab.sched.base import BaseScheduler
from llmlab.sched.plan import StepPlan
from llmlab.sched.request import RequestStatus

EXERCISE = "A6.plan-step"


@dataclass(frozen=True)
class Pending:
    """What a step can see of one request: tokens not computed yet, and whether it decodes.

    A request that decodes misses exactly one token: the one it has just been given.
    """

    missing: int
    decodes: bool


PlanStep = Callable[[list[Pending], int], list[int]]


def plan_step(pending: Sequence[Pending], budget: int) -> list[int]:
    """The library's own: one token for each decode, the rest to prompts, in order."""
    given = [0] * len(pending)
    for decodes in (True, False):
        for i, request in enumerate(pending):
            if request.decodes is decodes:
                given[i] = min(request.missing, budget)
                budget -= given[i]
    return given


def fault(pending: Sequence[Pending], budget: int, given: object) -> str | None:
    """Which law a plan breaks first, as a sentence; None if it breaks none of them."""
    if not isinstance(given, (list, tuple)) or len(given) != len(pending):
        return f"returns {given!r}: must be a list of {len(pending)} whole numbers"
    for i, (n, request) in enumerate(zip(given, pending, strict=True)):
        if not isinstance(n, int) or isinstance(n, bool) or n < 0:
            return f"gives request {i} {n!r} tokens: must be a whole number >= 0"
        if n > request.missing:
            return f"gives request {i} {n} tokens, but it misses only {request.missing}"
    if sum(given) > budget:
        return f"gives {sum(given)} tokens in all, over the budget of {budget}"
    return None


def _unfair(pending: Sequence[Pending], budget: int, given: Sequence[int]) -> str | None:
    """Which rule of decode-first a legal plan breaks."""
    decodes = [i for i, p in enumerate(pending) if p.decodes]
    prompts = [i for i, p in enumerate(pending) if not p.decodes]
    for number, i in enumerate(decodes):
        if number < budget and given[i] == 0:
            return f"gives request {i} nothing: it decodes, and the budget has a token for it"
    wanted = [p.missing for p in pending]
    if sum(given) < min(budget, sum(wanted)):
        return f"leaves {budget - sum(given)} tokens unused while requests miss some"
    for early, late in pairwise(prompts):
        if given[late] > 0 and given[early] < wanted[early]:
            return f"serves prompt {late} before prompt {early} has all it misses"
    return None


def random_case(rng: random.Random) -> tuple[list[Pending], int]:
    """Requests in order of admission, decodes and prompts mixed, and a budget, often too small."""
    pending = []
    for _ in range(rng.randrange(9)):
        decodes = rng.random() < 0.5
        pending.append(Pending(1 if decodes else rng.choice((1, 2, 7, 40, 300)), decodes))
    return pending, rng.choice((1, 2, 3, 8, 16, 64, 256, 1024))


def check_plan_step(mine: PlanStep, cases: int = 500, seed: int = 0) -> Result:
    """Try the learner's function on `cases` random steps; the first wrong one is shown."""
    done = f"{cases} random steps, all as they should be."
    return check_code(EXERCISE, _tries(mine, cases, random.Random(seed)), done)


def _tries(mine: PlanStep, cases: int, rng: random.Random) -> Iterator[Try]:
    def wrong(pending: list[Pending], budget: int, given: object) -> str | None:
        return fault(pending, budget, given) or _unfair(pending, budget, given)  # type: ignore[arg-type]

    for _ in range(cases):
        pending, budget = random_case(rng)
        told = ", ".join(f"{'decode' if p.decodes else 'prompt'} {p.missing}" for p in pending)
        yield Try(
            f"[{told}] and budget {budget}",
            partial(mine, list(pending), budget),
            partial(wrong, pending, budget),
        )


def scheduler_from(mine: PlanStep) -> type[BaseScheduler]:
    """A scheduler class whose every step is planned by `mine`.

    `mine` sees the running requests in order of admission, then as many of the waiting as could
    begin. A plan that breaks a law is a ValueError; which requests find KV blocks, and who has to
    go if none are left, stays with the library.
    """

    class Own(BaseScheduler):
        """Decides by the learner's function."""

        def _fill(self, step: StepPlan) -> None:
            running = self.running
            waiting = list(islice(self.waiting, self.config.max_num_seqs - len(running)))
            pending = [Pending(r.num_missing_tokens, r.decodes) for r in running + waiting]
            given = mine(list(pending), step.budget)
            wrong = fault(pending, step.budget, given)
            if wrong is not None:
                raise ValueError(f"plan_step {wrong}")
            turns = sorted(zip(running, given, strict=False), key=lambda turn: not turn[0].decodes)
            for request, n in turns:
                if n > 0 and request.status is RequestStatus.RUNNING:
                    self._serve(step, request, n)
            if not step.preempted:
                self._begin(step, given[len(running) :])

        def _begin(self, step: StepPlan, given: Sequence[int]) -> None:
            """Admit from the head of the queue; nobody overtakes one that gets nothing."""
            for planned in given:
                request = self.waiting.head
                hits = self.blocks.lookup(request)
                cached = len(hits) * self.config.block_size
                n = min(planned, request.num_tokens - cached)
                if n == 0 or not self._admit(step, hits, cached + n):
                    break
                step.give(request, n)

        def _chunk(self, missing: int, budget: int) -> int:
            return min(missing, budget)

        def steps_until_change(self) -> int:
            return 0  # the learner's function is asked at every step

    return Own

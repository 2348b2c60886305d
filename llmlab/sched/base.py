"""What all policies share: the door, the lists, taking blocks, preempting, committing, ending.

A policy adds `_fill(step)`, who is served in which order, and `_chunk`, how much of a prompt one
step computes. Reading two policies side by side is reading what differs, and nothing else.

    waiting --_admit--> prefilling --commit--> decoding --commit--> finished
       ^                     |                    |
       +------ _preempt -----+--------------------+         finish / abort: from anywhere

`decoding` and `prefilling` together are the running requests, each in order of admission.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import insort
from collections.abc import Iterable, Sequence
from itertools import count
from operator import attrgetter

from llmlab.config import EngineConfig, require_int
from llmlab.sched import door, integrity, leap
from llmlab.sched.blocks import BlockManager
from llmlab.sched.plan import Scheduler, StepPlan
from llmlab.sched.queues import FcfsQueue, PriorityQueue, WaitingQueue
from llmlab.sched.request import Request, RequestStatus

BY_ADMISSION = attrgetter("admission")
BY_URGENCY = attrgetter("priority", "arrival")
FINISH_REASONS = ("stop", "length", "abort")


class BaseScheduler(Scheduler):
    """Everything but the policy. vocab_size: if known, token ids outside it are refused."""

    takes_placeholders = True

    def __init__(self, config: EngineConfig, *, vocab_size: int | None = None) -> None:
        if vocab_size is not None:
            require_int(type(self).__name__, "vocab_size", vocab_size, 1)
        self.config = config
        self.vocab_size = vocab_size
        self.blocks = BlockManager(
            config.num_blocks, config.block_size, config.enable_prefix_caching
        )
        self.waiting: WaitingQueue = PriorityQueue() if self._by_priority else FcfsQueue()
        self.prefilling: list[Request] = []
        self.decoding: list[Request] = []
        self._alive: dict[str, Request] = {}
        self._arrivals = count()
        self._admissions = count()
        self._watermark = int(config.watermark * config.num_blocks)
        self._open: StepPlan | None = None  # planned, not committed
        self._ended_since_plan = False

    # ------------------------------------------------------------ in

    def add(self, request: Request) -> None:
        """Queue a request, or raise ValueError with what is allowed and change nothing."""
        door.check_request(request)
        if request.request_id in self._alive:
            raise ValueError(f"Request.request_id = {request.request_id!r}: must be unused")
        door.settle(request, self._limits(), self.vocab_size)
        request.arrival = next(self._arrivals)
        self._alive[request.request_id] = request
        self.waiting.push(request)

    def _limits(self) -> list[door.Limit]:
        """How long a request may be; a policy that cannot cut prompts adds its own limit."""
        return door.length_limits(self.config)

    # ------------------------------------------------------------ plan

    def plan(self) -> StepPlan:
        """Choose this step's tokens and take their blocks. Empty only if nothing can run.

        A plan that was never committed, say because the forward pass failed, is forgotten.
        """
        step = StepPlan(budget=self.config.max_num_batched_tokens, known_sampled=[])
        self._open, self._ended_since_plan = step, False
        self._fill(step)
        return step

    @abstractmethod
    def _fill(self, step: StepPlan) -> None:
        """The policy: give out `step.budget` tokens."""

    def _decode_all(self, step: StepPlan) -> bool:
        """Give every decode its token at once, if all have a slot. False: nothing changed."""
        size = self.config.block_size  # the usual step, so without a call per request
        full = [r for r in self.decoding if r.num_computed_tokens == len(r.block_ids) * size]
        if len(full) > self.blocks.num_free or len(self.decoding) > step.budget:
            return False
        for request in full:
            self.blocks.append(request, request.num_computed_tokens + 1)
        step.scheduled += [(request, 1) for request in self.decoding]
        step.sampled.extend(self.decoding)
        step.budget -= len(self.decoding)
        return True

    def _serve_running(self, step: StepPlan, walk: Iterable[Request]) -> None:
        """Give each of `walk` its chunk, in order."""
        for request in list(walk):
            if request.status is not RequestStatus.RUNNING:
                continue  # preempted for one before it
            n = self._chunk(request.num_missing_tokens, step.budget)
            if n > 0:
                self._serve(step, request, n)

    def _serve(self, step: StepPlan, request: Request, n: int) -> None:
        """Give a running request n tokens, preempting until they fit or it is itself the victim."""
        while not self.blocks.append(request, request.num_computed_tokens + n):
            victim = self._victim()
            self._preempt(step, victim)
            if victim is request:
                return
        step.give(request, n)

    @abstractmethod
    def _chunk(self, missing: int, budget: int) -> int:
        """The policy: how many of the missing tokens one step computes; 0 for none of them."""

    def _admit_waiting(self, step: StepPlan) -> None:
        """Let waiting requests begin, in order: nobody overtakes a head that finds no room."""
        while self._may_admit(step.budget) and self._admit_head(step):
            pass

    def _admit_head(self, step: StepPlan) -> bool:
        """Let the head of the queue run its first chunk. False: no room, it stays the head."""
        request = self.waiting.head
        hits = self.blocks.lookup(request)
        cached = len(hits) * self.config.block_size
        n = self._chunk(request.num_tokens - cached, step.budget)
        if n == 0 or not self._admit(step, hits, cached + n):
            return False
        step.give(request, n)
        return True

    def _may_admit(self, budget: int) -> bool:
        return len(self.waiting) > 0 and self.num_running < self.config.max_num_seqs and budget > 0

    def _admit(self, step: StepPlan, hits: Sequence[int], num_tokens: int) -> bool:
        """Let the head of the queue run, with slots for its first tokens. False: no room."""
        request = self.waiting.head
        if not self.blocks.allocate(request, num_tokens, hits, self._keep_free()):
            return False
        self.waiting.remove(request)
        request.status = RequestStatus.RUNNING
        request.admission = next(self._admissions)
        request.num_computed_tokens = len(hits) * self.config.block_size
        if request.num_preemptions == 0:
            request.num_cached_tokens = request.num_computed_tokens
        step.cache_hit_tokens += request.num_computed_tokens
        (self.decoding if request.decodes else self.prefilling).append(request)
        return True

    def _keep_free(self) -> int:
        """Blocks a newcomer must leave; none when it is alone, or it might never begin."""
        return self._watermark if self.num_running else 0

    def _victim(self) -> Request:
        """Who goes when blocks are short: the last admitted, or the least urgent."""
        if self._by_priority:
            return max(self._running(), key=BY_URGENCY)
        return max((*self.prefilling[-1:], *self.decoding[-1:]), key=BY_ADMISSION)

    def _preempt(self, step: StepPlan, victim: Request) -> None:
        """Back to the front of the queue, to be computed again; its tokens keep their place."""
        step.take_back(victim)
        self._leave(victim)
        victim.status = RequestStatus.PREEMPTED
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        self.waiting.put_back(victim)
        step.preempted.append(victim)

    # ------------------------------------------------------------ commit

    def commit(self, plan: StepPlan, tokens: Sequence[int]) -> list[Request]:
        """Advance by the plan; `tokens[i]` belongs to `plan.sampled[i]`. Returns the finished.

        What was aborted since `plan()` is passed over: its token is dropped.
        """
        if plan is not self._open:
            raise ValueError("plan: must be the latest one, committed once")
        sampled, scheduled = plan.sampled, plan.scheduled
        if len(tokens) != len(sampled):
            raise ValueError(f"{len(tokens)} tokens: must be {len(sampled)}, one each in sampled")
        if self._ended_since_plan:
            tokens = [t for r, t in zip(sampled, tokens, strict=True) if not r.finished]
            sampled = [r for r in sampled if not r.finished]
            scheduled = [(r, n) for r, n in scheduled if not r.finished]
        self._open = None
        for request, n in scheduled:
            request.num_computed_tokens += n
        if self.config.enable_prefix_caching:
            for request, n in scheduled:
                self.blocks.register(request, n)
        finished = []
        for request, token in zip(sampled, tokens, strict=True):
            output = request.output_token_ids
            output.append(token)
            may_end = len(output) >= request.max_tokens or token in request.stop_ids
            if may_end and request.ends_at(token):
                finished.append(request)
        self._settle(finished)
        return finished

    def _settle(self, finished: list[Request]) -> None:
        """Free the finished, and let those decode that have one token missing now."""
        for request in finished:
            request.status = RequestStatus.FINISHED
            self.blocks.free(request)
            del self._alive[request.request_id]
        if finished:
            self.decoding = [r for r in self.decoding if not r.finished]
        if self.prefilling:
            rest = []
            for request in self.prefilling:
                if request.finished:
                    continue
                if request.decodes:
                    insort(self.decoding, request, key=BY_ADMISSION)
                else:
                    rest.append(request)
            self.prefilling = rest

    # ------------------------------------------------------------ out

    def finish(self, request_id: str, reason: str, stop_reason: int | str | None = None) -> bool:
        """End a request in any state and free its blocks at once. False if it is unknown."""
        if reason not in FINISH_REASONS:
            raise ValueError(f"reason = {reason!r}: must be one of {', '.join(FINISH_REASONS)}")
        request = self._alive.pop(request_id, None)
        if request is None:
            return False
        if request.status is RequestStatus.RUNNING:
            self._leave(request)
        else:
            self.waiting.remove(request)
        request.status = RequestStatus.FINISHED
        request.finish_reason, request.stop_reason = reason, stop_reason
        self._ended_since_plan = True
        return True

    def reset_prefix_cache(self) -> None:
        self.blocks.reset_cache()

    def _leave(self, request: Request) -> None:
        """Out of the running lists, blocks free."""
        (self.decoding if request in self.decoding else self.prefilling).remove(request)
        self.blocks.free(request)

    # ------------------------------------------------------------ many decode steps at once

    def steps_until_change(self) -> int:
        """How many steps in a row are surely nothing but one token for each in `decoding`."""
        return leap.steps_until_change(self)

    def advance(self, steps: int, tokens: Sequence[Sequence[int]]) -> list[int]:
        """Take that many steps at once; see `leap.advance`."""
        return leap.advance(self, steps, tokens)

    def _may_begin(self, budget: int) -> bool:
        """Could a waiting request begin in a step that has this budget left by the decodes?"""
        if not self._may_admit(budget):
            return False
        if self.config.enable_prefix_caching:
            return True  # perhaps: its hits are not looked up here
        n = self._chunk(self.waiting.head.num_tokens, budget)
        return n > 0 and self.blocks.blocks_for(n) + self._keep_free() <= self.blocks.num_free

    # ------------------------------------------------------------ what can be seen

    @property
    def _by_priority(self) -> bool:
        return self.config.policy == "priority"

    def _running(self) -> Iterable[Request]:
        yield from self.decoding
        yield from self.prefilling

    @property
    def running(self) -> list[Request]:
        """The running requests in order of admission; a copy."""
        return sorted(self._running(), key=BY_ADMISSION)

    @property
    def has_work(self) -> bool:
        return bool(self._alive)

    @property
    def num_running(self) -> int:
        return len(self.decoding) + len(self.prefilling)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting)

    @property
    def num_blocks_used(self) -> int:
        return self.blocks.num_used

    def check_integrity(self) -> None:
        """Raise RuntimeError if a law of blocks or queues is broken. Callable at any time."""
        integrity.check(self)

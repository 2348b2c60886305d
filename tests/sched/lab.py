"""A scheduler driven by the history model, with every law checked around every step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from llmlab.config import EngineConfig
from llmlab.sched import BaseScheduler, Chunked, Request, SamplingParams, StepPlan
from llmlab.sched.blocks import block_key
from llmlab.sched.oracle import HistoryModel, solo

VOCAB = 97


def make(
    name: str,
    prompt: int | list[int],
    max_tokens: int | None = None,
    *,
    priority: int = 0,
    eos: int | None = None,
    **params: object,
) -> Request:
    """A request; a prompt given as a length is made of its own tokens."""
    if isinstance(prompt, int):
        prompt = [(7 * i + sum(map(ord, name))) % VOCAB for i in range(prompt)]
    sampling = SamplingParams(max_tokens=max_tokens, **params)  # type: ignore[arg-type]
    return Request(name, prompt, sampling, priority=priority, eos_token_id=eos)


@dataclass
class Step:
    """What one step did, as plain names and numbers."""

    scheduled: dict[str, int]
    emitted: list[str]
    preempted: list[str]
    finished: list[str]
    hits: int


@dataclass
class Lab:
    """`step()` checks the laws; `run()` steps to the end and checks what must hold then."""

    scheduler: BaseScheduler
    requests: list[Request] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    hit_tokens: int = 0
    computed_tokens: int = 0
    wasted_tokens: int = 0

    def __post_init__(self) -> None:
        config = self.scheduler.config
        self.model = HistoryModel(config.num_blocks, config.block_size, VOCAB)
        self.content: dict[bytes, list[tuple[int, int]]] = {}

    @property
    def chunked(self) -> bool:
        return isinstance(self.scheduler, Chunked)

    def add(self, *requests: Request) -> Lab:
        for request in requests:
            self.scheduler.add(request)
            self.requests.append(request)
        return self

    def step(self, during: Callable[[StepPlan], None] | None = None) -> Step:
        """One step. during: what happens between plan and commit."""
        plan = self.plan()
        tokens = self.model.forward(plan)
        if during is not None:
            during(plan)
        self.scheduler.check_integrity()
        before = {r: list(r.output_token_ids) for r in self.requests}
        alive = [(r, n) for r, n in plan.scheduled if not r.finished]
        emitted = [r for r in plan.sampled if not r.finished]
        seen = (
            {r.request_id: n for r, n in plan.scheduled},
            [r.request_id for r in emitted],
            [r.request_id for r in plan.preempted],
        )
        self.computed_tokens += sum(n for _, n in alive)
        finished = self.scheduler.commit(plan, tokens)
        self.scheduler.check_integrity()
        for request, old in before.items():
            new = request.output_token_ids
            assert new[: len(old)] == old, "a token was taken back"
            assert len(new) - len(old) == (request in emitted), "one token for each sampled"
        self._check_after_commit(finished)
        self.steps.append(Step(*seen, [r.request_id for r in finished], plan.cache_hit_tokens))
        return self.steps[-1]

    def plan(self) -> StepPlan:
        """A plan, checked against the state before it."""
        s = self.scheduler
        running, waiting = s.running, list(s.waiting)
        decoding = [r for r in running if r.decodes]
        computed = {r: r.num_computed_tokens for r in running}
        plan = s.plan()
        s.check_integrity()
        self.hit_tokens += plan.cache_hit_tokens
        self.wasted_tokens += sum(computed[r] for r in plan.preempted)
        self._check_plan(plan)
        self._check_admission(plan, running, waiting)
        if self.chunked:
            self._check_chunked(plan, decoding)
        return plan

    def _check_plan(self, plan: StepPlan) -> None:
        s, config = self.scheduler, self.scheduler.config
        served = [r for r, _ in plan.scheduled]
        used = sum(n for _, n in plan.scheduled)
        assert used <= config.max_num_batched_tokens
        assert plan.budget == config.max_num_batched_tokens - used, "refunds are counted"
        assert all(n >= 1 for _, n in plan.scheduled)
        assert len(set(served)) == len(served), "one entry per request"
        assert s.num_running <= config.max_num_seqs
        assert set(served) <= set(s.running)
        assert not set(served) & set(plan.preempted)
        assert plan.scheduled or not s.has_work, "work, and nothing planned"
        reach = [r for r, n in plan.scheduled if r.num_computed_tokens + n == r.num_tokens]
        assert plan.sampled == reach, "sampled is who catches up, in the order of scheduled"
        for request, n in plan.scheduled:
            end = request.num_computed_tokens + n
            assert end <= request.num_tokens
            for block in request.block_ids[request.num_computed_tokens // config.block_size :]:
                assert s.blocks._refs[block] == 1, "a block that is written has one owner"

    def _check_admission(self, plan: StepPlan, running: list, waiting: list) -> None:
        """First come, first served: who begins is a prefix of the queue."""
        begun = [r for r in waiting if r in self.scheduler.running]
        assert begun == waiting[: len(begun)], "nobody overtakes"
        if self.chunked and plan.preempted:
            assert not begun, "no admission in a step that preempted"

    def _check_chunked(self, plan: StepPlan, decoding: list) -> None:
        s, config = self.scheduler, self.scheduler.config
        limit = config.long_prefill_token_threshold
        assert not limit or all(n <= limit for _, n in plan.scheduled)
        for request in s.running:
            size = config.block_size
            end = request.num_computed_tokens + dict(plan.scheduled).get(request, 0)
            # A lost step may have left one chunk's blocks; the next plan fills the same ones.
            assert len(request.block_ids) == -(-end // size) or request not in dict(plan.scheduled)
        if s.order == "decode_first" and config.max_num_batched_tokens >= config.max_num_seqs:
            given = dict(plan.scheduled)
            for request in decoding:
                assert given.get(request) == 1 or request in plan.preempted
        left = config.max_num_batched_tokens - sum(n for _, n in plan.scheduled)
        if left and s.num_waiting and s.num_running < config.max_num_seqs and not plan.preempted:
            assert not self._head_fits(left), "work conservation: the head of the queue would fit"

    def _head_fits(self, left: int) -> bool:
        s, config = self.scheduler, self.scheduler.config
        head = next(iter(s.waiting))
        hits = s.blocks.lookup(head)
        missing = head.num_tokens - len(hits) * config.block_size
        n = min(missing, left, config.long_prefill_token_threshold or missing)
        end = len(hits) * config.block_size + n
        idle = sum(block in s.blocks._free for block in hits)
        new = -(-end // config.block_size) - len(hits)
        spare = int(config.watermark * config.num_blocks) if s.running else 0
        return new + idle + spare <= s.blocks.num_free

    def _check_after_commit(self, finished: list[Request]) -> None:
        for request in finished:
            assert (request.output_token_ids, request.finish_reason) == self.solo(request)
        if self.scheduler.config.enable_prefix_caching:
            self._check_cache()

    def _check_cache(self) -> None:
        """Every block that can be found holds, slot by slot, what its key says."""
        size, blocks = self.scheduler.config.block_size, self.scheduler.blocks
        for request in self.requests:
            history = [*request.prompt_token_ids, *request.output_token_ids]
            parent = b""
            for start in range(0, len(history) - size + 1, size):
                tokens = history[start : start + size]
                parent = block_key(parent, tokens)
                slots = list(zip(tokens, range(start, start + size), strict=True))
                assert self.content.setdefault(parent, slots) == slots
        for key, block in blocks._block_of.items():
            assert self.model.read([block]) == self.content[key]

    def solo(self, request: Request) -> tuple[list[int], str]:
        return solo(
            request.prompt_token_ids,
            request.params,
            request.max_tokens,
            request.eos_token_id,
            VOCAB,
        )

    def abort(self, name: str) -> bool:
        ended = self.scheduler.abort(name)
        self.scheduler.check_integrity()
        return ended

    def run(self, most: int | None = None) -> Lab:
        """To the end; no more steps than one for each token computed anew, under fcfs."""
        bound = sum(r.num_prompt_tokens + r.max_tokens - 1 for r in self.requests)
        most = most or (bound if self.scheduler.config.policy == "fcfs" else 50 * bound)
        start = len(self.steps)
        while self.scheduler.has_work:
            assert len(self.steps) - start < most, f"no end after {most} steps"
            self.step()
        self.check_idle()
        return self

    def check_idle(self) -> None:
        s = self.scheduler
        assert s.num_blocks_used == 0
        assert set(s.blocks._refs) == {0}
        assert (s.num_running, s.num_waiting, s._alive) == (0, 0, {})
        for request in self.requests:
            assert request.finished
            whole, reason = self.solo(request)
            if request.finish_reason == "abort":
                assert request.output_token_ids == whole[: len(request.output_token_ids)]
            else:
                assert (request.output_token_ids, request.finish_reason) == (whole, reason)
        kept = sum(r.num_computed_tokens for r in self.requests)
        assert self.computed_tokens + self.hit_tokens == kept + self.wasted_tokens

    @property
    def plans(self) -> list[dict[str, int]]:
        return [step.scheduled for step in self.steps]

    @property
    def emissions(self) -> list[list[str]]:
        return [step.emitted for step in self.steps]


def lab(scheduler: Callable[..., BaseScheduler] = Chunked, **config: object) -> Lab:
    """B, N, T, S, L stand for the long names of EngineConfig; `order` goes to the scheduler."""
    names = {
        "B": "block_size",
        "N": "num_blocks",
        "T": "max_num_batched_tokens",
        "S": "max_num_seqs",
        "L": "max_model_len",
    }
    more = {"order": config.pop("order")} if "order" in config else {}
    values = {names.get(key, key): value for key, value in config.items()}
    return Lab(scheduler(EngineConfig(**values), vocab_size=VOCAB, **more))

"""Any order of calls, found by hypothesis: the laws hold after each of them."""

from __future__ import annotations

from functools import partial

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from llmlab.config import EngineConfig
from llmlab.sched import Chunked, Continuous, SamplingParams, Static
from llmlab.sched.request import Request
from tests.sched.lab import VOCAB, Lab

configs = st.builds(
    EngineConfig,
    max_num_batched_tokens=st.integers(1, 20),
    max_num_seqs=st.integers(1, 5),
    block_size=st.integers(1, 5),
    num_blocks=st.integers(1, 10),
    max_model_len=st.integers(2, 40),
    long_prefill_token_threshold=st.sampled_from([0, 0, 1, 4]),
    watermark=st.sampled_from([0.0, 0.0, 0.2]),
    enable_prefix_caching=st.booleans(),
    policy=st.sampled_from(["fcfs", "fcfs", "priority"]),
)
schedulers = st.sampled_from([Chunked, partial(Chunked, order="admission"), Continuous, Static])
# Few different tokens and cuts of one stem, so that prompts share what they begin with.
prompts = st.one_of(
    st.integers(1, 16).map(lambda n: [i * i % 7 for i in range(n)]),
    st.lists(st.integers(0, 1), min_size=1, max_size=12),
)


class SchedulerMachine(RuleBasedStateMachine):
    """Lab checks the laws in every step; here is who calls what, and when."""

    @initialize(scheduler=schedulers, config=configs)
    def start(self, scheduler, config) -> None:
        self.bench = Lab(scheduler(config, vocab_size=VOCAB))

    @rule(prompt=prompts, most=st.sampled_from([None, 1, 2, 4, 9]), urgency=st.integers(0, 2))
    def add(self, prompt, most, urgency) -> None:
        name = f"r{len(self.bench.requests)}"
        params = SamplingParams(max_tokens=most, stop_token_ids=tuple(range(5 * urgency)))
        request = Request(name, prompt, params, priority=urgency)
        before = (self.bench.scheduler.num_waiting, self.bench.scheduler.has_work)
        try:
            self.bench.add(request)
        except ValueError:
            after = (self.bench.scheduler.num_waiting, self.bench.scheduler.has_work)
            assert after == before, "refused, yet something changed"

    def with_work(self) -> bool:
        return self.bench.scheduler.has_work

    @precondition(with_work)
    @rule()
    def step(self) -> None:
        self.bench.step()

    @precondition(with_work)
    @rule(data=st.data())
    def step_with_an_abort_inside(self, data) -> None:
        self.bench.step(lambda plan: self.abort_one(data))

    @precondition(with_work)
    @rule()
    def step_that_fails(self) -> None:
        """Planned, perhaps half written, never committed."""
        plan = self.bench.plan()
        for request, n in plan.scheduled[:1]:
            self.bench.model._write(request, n)

    @precondition(lambda self: self.bench.requests)
    @rule(data=st.data())
    def abort_any(self, data) -> None:
        self.abort_one(data)

    def abort_one(self, data) -> None:
        request = data.draw(st.sampled_from(self.bench.requests))
        was_alive, output = not request.finished, list(request.output_token_ids)
        assert self.bench.abort(request.request_id) == was_alive
        assert not self.bench.abort(request.request_id)
        assert request.finished
        assert request.output_token_ids == output
        assert request.block_ids == []

    @rule()
    def abort_nobody(self) -> None:
        assert not self.bench.abort("nobody")

    @rule()
    def forget_the_cache(self) -> None:
        self.bench.scheduler.blocks.reset_cache()
        self.bench.scheduler.check_integrity()
        assert self.bench.scheduler.blocks.num_cached == 0

    @precondition(lambda self: self.bench.scheduler.steps_until_change() > 0)
    @rule(data=st.data())
    def leap(self, data) -> None:
        """Many steps at once; the tokens are those the model would have written."""
        s = self.bench.scheduler
        steps = data.draw(st.integers(1, s.steps_until_change()))
        decoding = list(s.decoding)
        tokens = [self.bench.solo(r)[0][len(r.output_token_ids) :][:steps] for r in decoding]
        first = [r.num_computed_tokens for r in decoding]
        s.advance(steps, tokens)
        for request, start in zip(decoding, first, strict=True):
            done, request.num_computed_tokens = request.num_computed_tokens, start
            self.bench.model._write(request, done - start)
            request.num_computed_tokens = done
            self.bench.computed_tokens += done - start
        s.check_integrity()

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.run(most=5000)


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)

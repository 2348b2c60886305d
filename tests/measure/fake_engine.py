"""An engine on a virtual clock: one step takes a fixed time and gives each running request a token.

No scheduler, no model: what it does can be worked out by hand, so the runner's laws can be stated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

from llmlab.sched.request import SamplingParams
from llmlab.trace import RequestRecord, StepRecord, TokenEvent, Trace


@dataclass
class Output:
    request_id: str
    token_ids: list[int]
    finish_reason: str | None = None


class FakeEngine:
    """At most `seats` requests at once, in order of arrival; prompts over `longest` are refused."""

    def __init__(self, step_ns: int = 10_000_000, seats: int = 64, longest: int = 10_000) -> None:
        self.now = 0
        self.step_ns, self.seats, self.longest = step_ns, seats, longest
        self.trace = Trace(meta={"source": "fake"})
        self.queue: list[tuple[str, int]] = []  # id, tokens still to give
        self.prompts: dict[str, list[int]] = {}
        self.model = SimpleNamespace(config=SimpleNamespace(vocab_size=100))
        self.stuck = False

    def clock(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(1, round(seconds * 1e9))

    @property
    def has_work(self) -> bool:
        return bool(self.queue)

    def add(
        self,
        prompt: Sequence[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        class_name: str = "default",
        t_sched: int | None = None,
        t_send: int | None = None,
    ) -> str:
        name = request_id or f"req-{len(self.trace.requests)}"
        record = RequestRecord(
            name, class_name, len(prompt), params.max_tokens, t_sched, t_send, self.now
        )
        self.trace.requests[name] = record
        if len(prompt) > self.longest:
            record.outcome, record.reason, record.t_end = "rejected", "too long", self.now
            raise ValueError("prompt: too long")
        assert params.ignore_eos
        self.prompts[name] = list(prompt)
        self.queue.append((name, params.max_tokens))
        return name

    def step(self) -> list[Output]:
        if self.stuck:
            return []
        start, self.now = self.now, self.now + self.step_ns
        running, self.queue = self.queue[: self.seats], self.queue[self.seats :]
        outputs, kept = [], []
        for name, left in running:
            record = self.trace.requests[name]
            if record.t_first_scheduled is None:
                record.t_first_scheduled = start
            record.events.append(TokenEvent(self.now))
            outputs.append(Output(name, [1], "length" if left == 1 else None))
            if left == 1:
                self._end(record, "completed")
            else:
                kept.append((name, left - 1))
        self.queue = kept + self.queue
        scheduled = [(name, 1, 0, True) for name, _ in running]
        self.trace.steps.append(StepRecord(len(self.trace.steps), start, self.now, scheduled))
        return outputs

    def abort(self, request_id: str) -> bool:
        alive = any(name == request_id for name, _ in self.queue)
        if alive:
            self.queue = [entry for entry in self.queue if entry[0] != request_id]
            self._end(self.trace.requests[request_id], "cancelled")
        return alive

    def _end(self, record: RequestRecord, outcome: str) -> None:
        record.outcome, record.t_end = outcome, self.now
        record.completion_tokens = len(record.events)

"""A torch-free engine for the server's laws: the real trace, a real ledger of blocks, toy tokens.

Each running request gets one token a step. Token i of a request is a function of its prompt
and i alone. `gate`, if set, is waited for in the middle of each step.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from llmlab.config import EngineConfig
from llmlab.sched.request import SamplingParams
from llmlab.trace import RequestRecord, StepRecord, TokenEvent, Trace


@dataclass
class FakeOutput:
    request_id: str
    token_ids: list[int]
    text: str
    t: int
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: Any = None


class FakeTokenizer:
    vocab_size = 259
    eos_token_id = None

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: list[int]) -> str:
        return bytes(ids).decode()

    def chat(self, messages: list[dict[str, str]]) -> list[int]:
        return self.encode("".join(m["content"] for m in messages) or " ")


def words(prompt: list[int], n: int) -> list[str]:
    """The answer to a prompt: n short words."""
    seed = sum((i + 1) * token for i, token in enumerate(prompt)) % 9973
    return [f"w{(seed * 31 + i * 17) % 100:02d} " for i in range(n)]


class FakeEngine:
    def __init__(self, config: EngineConfig | None = None, step_s: float = 0.001) -> None:
        self.config = config or EngineConfig(num_blocks=256, max_num_seqs=8)
        self.tokenizer = FakeTokenizer()
        self.trace = Trace()
        self.scheduler = self
        self.step_s = step_s
        self.gate: threading.Semaphore | None = None
        self.crash_at: int | None = None
        self.in_step = threading.Event()
        self.num_steps = 0
        self._live: dict[str, tuple[list[int], SamplingParams, list[str]]] = {}

    def add(self, prompt, params, *, request_id=None, class_name="default", t_sched=None,
            t_send=None, t_queued=None):  # fmt: skip
        if len(prompt) + (params.max_tokens or 1) > self.config.max_model_len:
            raise ValueError(
                f"prompt of {len(prompt)} tokens and max_tokens = {params.max_tokens} exceed "
                f"max_model_len = {self.config.max_model_len}"
            )
        n = params.max_tokens or 20
        self._live[request_id] = (list(prompt), params, words(prompt, n))
        self.trace.requests[request_id] = RequestRecord(
            request_id, class_name, len(prompt), n, t_sched=t_sched, t_send=t_send,
            t_queued=t_queued or time.perf_counter_ns(),
        )  # fmt: skip
        return request_id

    def step(self) -> list[FakeOutput]:
        start = time.perf_counter_ns()
        self.num_steps += 1
        batch = list(self._live)[: self.config.max_num_seqs]
        self.in_step.set()
        if self.gate is not None:
            self.gate.acquire()
        if self.num_steps == self.crash_at:
            raise RuntimeError("boom")
        time.sleep(self.step_s)
        outputs = [self._token(request_id, start) for request_id in batch]
        scheduled = [(r, 1, 0, True) for r in batch]
        step = StepRecord(self.num_steps, start, time.perf_counter_ns(), scheduled)
        self.trace.steps.append(step)
        return outputs

    def _token(self, request_id: str, start: int) -> FakeOutput:
        record = self.trace.requests[request_id]
        _, _, answer = self._live[request_id]
        i = len(record.events)
        now = time.perf_counter_ns()
        record.t_first_scheduled = record.t_first_scheduled or start
        record.events.append(TokenEvent(now))
        last = i + 1 == len(answer)
        if last:
            self._end(request_id, "completed", "length", now)
        return FakeOutput(request_id, [i], answer[i], now, "length" if last else None)

    def _end(self, request_id: str, outcome: str, reason: str, now: int) -> None:
        record = self.trace.requests[request_id]
        record.outcome, record.finish_reason, record.t_end = outcome, reason, now
        record.completion_tokens = len(record.events)
        del self._live[request_id]

    def abort(self, request_id: str) -> bool:
        if request_id not in self._live:
            return False
        self._end(request_id, "cancelled", "abort", time.perf_counter_ns())
        return True

    @property
    def has_work(self) -> bool:
        return bool(self._live)

    @property
    def num_running(self) -> int:
        return min(len(self._live), self.config.max_num_seqs)

    @property
    def num_waiting(self) -> int:
        return len(self._live) - self.num_running

    @property
    def num_blocks_used(self) -> int:
        return len(self._live)

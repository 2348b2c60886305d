"""The engine: requests in, tokens out, one step at a time.

`step()` is the whole loop: plan, batch, forward, sample, commit, emit. It runs in the caller's
thread and owns no other. `abort` may be called from any thread.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from llmlab.config import EngineConfig, require, require_int
from llmlab.engine.attention import Attention
from llmlab.engine.model import Model
from llmlab.engine.recorder import Recorder
from llmlab.engine.runner import MakeRunner, for_device
from llmlab.engine.sampler import Row, TokenLogprob, logprobs_of
from llmlab.engine.text import TextStream
from llmlab.sched.plan import Scheduler
from llmlab.sched.request import Request, SamplingParams
from llmlab.trace import RequestRecord, StepRecord, Trace


@dataclass(slots=True)
class TokenOutput:
    """What one step gave one request.

    text is what became certain with these tokens; joined over a request it is the whole answer.
    t: ns on the engine's clock. finish_reason: None, or "stop" or "length" in the last output.
    """

    request_id: str
    token_ids: list[int]
    text: str
    t: int
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: list[TokenLogprob] | None = None


@dataclass(slots=True)
class _Live:
    """A request in the engine, with what the scheduler need not know."""

    request: Request
    text: TextStream
    seed: int
    inbox: deque[TokenOutput] | None = field(default=None)


class Engine:
    """Serves many requests on one model.

    scheduler: a `Scheduler`, or a class called as `scheduler(config, vocab_size=V)`; None means
    `Chunked`. attention: "torch", "triton" or a callable, see `attention.paged_attention`; None
    means "triton" on CUDA and "torch" elsewhere. runner: None likewise. clock: integer
    nanoseconds, monotonic.
    """

    def __init__(
        self,
        model: Model,
        config: EngineConfig | None = None,
        scheduler: Scheduler | Callable[..., Scheduler] | None = None,
        attention: str | Attention | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
        *,
        runner: MakeRunner | None = None,
    ) -> None:
        if isinstance(scheduler, Scheduler):
            config = config or scheduler.config
            require(scheduler.config == config, "Engine", "config", config, "the scheduler's own")
        self.config = config or EngineConfig()
        limit = model.config.max_position_embeddings
        require_int("EngineConfig", "max_model_len", self.config.max_model_len, 1, limit)
        self.model = model
        self.tokenizer = model.tokenizer
        self.scheduler = _scheduler(scheduler, self.config, model.config.vocab_size)
        attention, runner = for_device(model, attention, runner)
        self.runner = runner(model, self.config, attention)
        self.clock = clock
        self.trace = Trace(
            meta={
                "source": "engine",
                "simulated": False,
                "model": model.config.name,
                "config": asdict(self.config),
            }
        )
        self._record = Recorder(self.trace)
        self._live: dict[str, _Live] = {}
        self._count = 0
        self._lock = threading.RLock()
        self._aborts: deque[str] = deque()
        self._timers: list[tuple[StepRecord, Callable[[], float]]] = []

    # ------------------------------------------------------------ in

    def add(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        class_name: str = "default",
        priority: int = 0,
        t_sched: int | None = None,
        t_send: int | None = None,
    ) -> str:
        """Take a request and return its id; ValueError (also in the trace) if it is refused."""
        record = RequestRecord(
            request_id=request_id or "",
            class_name=class_name,
            t_sched=t_sched,
            t_send=self.clock() if t_send is None else t_send,
        )
        with self._lock:
            if request_id is None:
                record.request_id = self._fresh_id()
            try:
                ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
                record.prompt_tokens = len(ids)  # also of what is refused below
                require(bool(ids), "Request", "prompt", prompt, "at least one token")
                request = self._request(record.request_id, ids, params, priority)
                self.scheduler.add(request)
            except ValueError as error:
                self._record.rejected(record, str(error), self.clock())
                raise
            self._live[request.request_id] = _Live(
                request,
                TextStream(
                    self.tokenizer.detokenizer(),
                    request.params.stop,
                    include_stop=request.params.include_stop_str_in_output,
                ),
                secrets.randbits(63) if request.params.seed is None else request.params.seed,
            )
            self._record.queued(record, request, self.clock())
        return request.request_id

    def abort(self, request_id: str) -> bool:
        """Cancel a request in any state, from any thread. True if it was still alive.

        Its blocks are free at once, or at the end of the step that is running in another thread.
        """
        alive = request_id in self._live
        if alive:
            self._aborts.append(request_id)
            self._take_aborts(blocking=False)
        return alive

    # ------------------------------------------------------------ one step

    def step(self) -> list[TokenOutput]:
        """Run one step. [] if nothing ran, or if no request got a token from it."""
        with self._lock:
            outputs = self._step()
        self._take_aborts(blocking=False)
        return outputs

    def _step(self) -> list[TokenOutput]:
        self._take_aborts()
        start = self.clock()
        plan = self.scheduler.plan()
        if not plan.scheduled:
            return []
        record = self._record.planned(plan, start)
        sampled = plan.sampled
        rows = [self._row(request) for request in sampled]
        logits = self.runner.forward(self.runner.build(plan))
        timer = self.runner.timer()
        tokens = self.runner.sample(logits, rows) if rows else []
        self._read_timers(record, timer, waited=bool(rows))
        self._take_aborts()
        self.scheduler.commit(plan, tokens)
        outputs = self._emit(sampled, tokens, logits)
        now = self.clock()
        for output in outputs:
            output.t = now
        self._record.stepped(record, [o.request_id for o in outputs], self.scheduler, now)
        self._close(outputs, now)
        return outputs

    def _read_timers(
        self, record: StepRecord, timer: Callable[[], float] | None, waited: bool
    ) -> None:
        """Device time of steps, read once a token was read back: by then they are all over."""
        if timer is not None:
            self._timers.append((record, timer))
        if waited:
            for step, seconds in self._timers:
                step.utilization = {"device_seconds": seconds()}
            self._timers.clear()

    def stream(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None, **more: Any
    ) -> Iterator[TokenOutput]:
        """Add a request and yield its outputs, running steps as needed.

        Closing the generator cancels the request and frees its blocks. `more` goes to `add`.
        """
        request_id = self.add(prompt, params, **more)
        inbox: deque[TokenOutput] = deque()
        live = self._live[request_id]
        live.inbox = inbox
        try:
            while inbox or request_id in self._live:
                if inbox:
                    yield inbox.popleft()
                else:
                    self.step()
        finally:
            self.abort(request_id)

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    # ------------------------------------------------------------ inside

    def _fresh_id(self) -> str:
        while (name := f"req-{self._count}") in self.trace.requests:
            self._count += 1
        return name

    def _request(
        self,
        request_id: str,
        ids: list[int],
        params: SamplingParams | None,
        priority: int,
    ) -> Request:
        """A checked request; the scheduler checks what concerns the pool."""
        require(
            request_id not in self.trace.requests, "Request", "request_id", request_id, "unused"
        )
        params = params or SamplingParams()
        require(isinstance(params, SamplingParams), "Request", "params", params, "SamplingParams")
        require_int("Request", "priority", priority, -(2**31), 2**31)
        top = self.model.config.vocab_size - 1
        for token in (*ids, *params.stop_token_ids):
            require_int("Request", "token id", token, 0, top)
        return Request(
            request_id, ids, params, priority=priority, eos_token_id=self.tokenizer.eos_token_id
        )

    def _row(self, request: Request) -> Row:
        params, outputs = request.params, request.output_token_ids
        banned: list[int] = []
        if len(outputs) < params.min_tokens:
            banned = list(params.stop_token_ids)
            if request.eos_token_id is not None and not params.ignore_eos:
                banned.append(request.eos_token_id)
        history: list[int] = []
        if params.repetition_penalty != 1.0:
            history = request.prompt_token_ids + outputs
        return Row(params, self._live[request.request_id].seed, len(outputs), history, banned)

    def _emit(
        self, sampled: Sequence[Request], tokens: Sequence[int], logits: torch.Tensor
    ) -> list[TokenOutput]:
        """Text and finish reason of every sampled request that is still alive."""
        outputs = []
        for row, (request, token) in enumerate(zip(sampled, tokens, strict=True)):
            live = self._live.get(request.request_id)
            if live is None:  # aborted during the forward pass
                continue
            text = self._text(live, token)
            params = request.params
            outputs.append(
                TokenOutput(
                    request.request_id,
                    [token],
                    text,
                    0,
                    request.finish_reason,
                    request.stop_reason,
                    None
                    if params.logprobs is None
                    else [logprobs_of(logits[row], token, params.logprobs)],
                )
            )
        return outputs

    def _text(self, live: _Live, token: int) -> str:
        """The new text; a stop string found in it ends the request."""
        request, params = live.request, live.request.params
        if request.stop_reason == token and not params.include_stop_str_in_output:
            return live.text.flush()  # a stop token is no part of the answer
        may_stop = len(request.output_token_ids) >= params.min_tokens
        text = live.text.push(token, may_stop=may_stop)
        if request.finished:
            text += live.text.flush()
        if live.text.stopped is not None:
            if not request.finished:
                self.scheduler.finish(request.request_id, "stop", live.text.stopped)
            request.finish_reason, request.stop_reason = "stop", live.text.stopped
        return text

    def _close(self, outputs: Sequence[TokenOutput], now: int) -> None:
        """Hand outputs to streams and forget the requests that ended."""
        for output in outputs:
            live = self._live[output.request_id]
            if live.inbox is not None:
                live.inbox.append(output)
            if live.request.finished:
                self._record.finished(live.request, now)
                del self._live[output.request_id]

    def _take_aborts(self, *, blocking: bool = True) -> None:
        """End the requests whose abort was asked for; whoever holds the lock does it for all."""
        while self._aborts and self._lock.acquire(blocking=blocking):
            try:
                while self._aborts:
                    self._end(self._aborts.popleft())
            finally:
                self._lock.release()

    def _end(self, request_id: str) -> None:
        live = self._live.get(request_id)
        if live is not None and self.scheduler.abort(request_id):
            self._record.finished(live.request, self.clock())
            del self._live[request_id]


def _scheduler(
    scheduler: Scheduler | Callable[..., Scheduler] | None, config: EngineConfig, vocab_size: int
) -> Scheduler:
    if isinstance(scheduler, Scheduler):
        return scheduler
    if scheduler is None:
        from llmlab.sched.chunked import Chunked

        scheduler = Chunked
    return scheduler(config, vocab_size=vocab_size)

"""The engine: requests in, tokens out, one step at a time.

`step()` is the whole loop: plan, batch, forward, sample, commit, emit. It runs in the caller's
thread and owns no other. `add` and `abort` may be called from any thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch

from llmlab.config import EngineConfig, require
from llmlab.engine import overlap
from llmlab.engine.attention import Attention
from llmlab.engine.live import TokenOutput
from llmlab.engine.model import Model
from llmlab.engine.overlap import Flight
from llmlab.engine.parts import choose_async, choose_config, make_scheduler
from llmlab.engine.passes import never_fits
from llmlab.engine.recorder import Recorder
from llmlab.engine.requests import Requests
from llmlab.engine.runner import MakeRunner, for_device
from llmlab.sched.plan import Scheduler, StepPlan
from llmlab.sched.request import SamplingParams
from llmlab.trace import RequestRecord, StepRecord, Trace


class Engine:
    """Serves many requests on one model.

    scheduler: a `Scheduler`, or a class called as `scheduler(config, vocab_size=V)`; None means
    `Chunked`. attention: "torch", "triton" or a callable, see `attention.paged_attention`; None
    means "triton" on CUDA and "torch" elsewhere. runner: None likewise. clock: integer
    nanoseconds, monotonic. async_scheduling: launch each step before the tokens of the one before
    are read back, see `overlap`; None means on CUDA. gpu_memory_utilization: share of the card
    that weights, largest step and KV pool may take, 0.9 if None; only if `config` names no
    num_blocks.
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
        async_scheduling: bool | None = None,
        gpu_memory_utilization: float | None = None,
    ) -> None:
        self.config = choose_config(model, config, scheduler, gpu_memory_utilization)
        self.model = model
        self.tokenizer = model.tokenizer
        self.scheduler = make_scheduler(scheduler, self.config, model.config.vocab_size)
        self.async_scheduling = choose_async(async_scheduling, model, self.scheduler)
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
        if self.async_scheduling:
            self.trace.meta["async_scheduling"] = True
        self._record = Recorder(self.trace)
        self._requests = Requests(model, self.scheduler, self._record, clock)
        self._flying: Flight | None = None
        self._fitted = (0, 0)  # tokens and requests of the largest step so far
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
        t_queued: int | None = None,
    ) -> str:
        """Take a request and return its id; ValueError (also in the trace) if it is refused.

        While a step runs in another thread, this waits for its end; `t_queued`, when the request
        came to the engine, does not. A server that keeps requests until then states it itself.
        """
        record = RequestRecord(
            request_id=request_id if request_id is not None else self._requests.fresh_id(),
            class_name=class_name,
            t_sched=t_sched,
            t_send=self.clock() if t_send is None else t_send,
        )
        try:
            ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
            record.prompt_tokens = len(ids)  # also of what is refused below
            require(bool(ids), "Request", "prompt", prompt, "at least one token")
            arrived = self.clock() if t_queued is None else t_queued
            with self._lock:
                self._requests.take(record, ids, params, priority, arrived)
        except ValueError as error:
            with self._lock:
                self._record.rejected(record, str(error), self.clock())
            raise
        return record.request_id

    def abort(self, request_id: str) -> bool:
        """Cancel a request in any state, from any thread. True if it was still alive.

        Its blocks are free at once, or at the end of the step that is running in another thread.
        """
        alive = request_id in self._requests
        if alive:
            self._aborts.append(request_id)
            self._take_aborts(blocking=False)
        return alive

    # ------------------------------------------------------------ one step

    def step(self) -> list[TokenOutput]:
        """Launch a step and return what a step gave: this one, or the one before it.

        The one before with `async_scheduling`. [] if no request got a token from it.
        """
        with self._lock:
            outputs = self._step()
        self._take_aborts(blocking=False)
        return outputs

    def _step(self) -> list[TokenOutput]:
        self._take_aborts()
        early = self._flying is not None and self._flying.waits
        outputs = self._land_flying() if early else []
        start = self.clock()
        plan = self.scheduler.plan()
        flight, failure = self._launch(plan, start) if plan.scheduled else (None, "")
        outputs += self._land_flying()
        if failure:
            outputs += self._requests.fail([r for r, _ in plan.scheduled], failure)
        elif flight is not None and self.async_scheduling:
            self._take_off(flight)
        elif flight is not None:
            outputs += self._land(flight)
        return outputs

    def _launch(self, plan: StepPlan, start: int) -> tuple[Flight | None, str]:
        """Forward pass and draw, waiting for neither; or why not even the memory suffices."""
        record, sampled = self._record.planned(plan, start), list(plan.sampled)
        rows = self._requests.rows(sampled)
        try:
            batch = self.runner.build(plan)
            if (flying := self._flying) is not None and flying.tokens is not None:
                pairs = overlap.on_their_way(plan, flying.sampled)
                self.runner.feed(batch, pairs, flying.tokens.tokens)
            logits = self.runner.forward(batch)
            timer = self.runner.timer()
            tokens = self.runner.launch_sample(logits, rows) if rows else None
        except torch.OutOfMemoryError:
            counts = plan.num_tokens, len(plan.scheduled)
            return None, never_fits(*counts, self._fitted, self.config)
        tried = (plan.num_tokens, len(plan.scheduled))
        self._fitted = max(self._fitted[0], tried[0]), max(self._fitted[1], tried[1])
        kept = logits if any(r.params.logprobs is not None for r in sampled) else None
        return Flight(plan, sampled, record, kept, tokens, timer), ""

    def _take_off(self, flight: Flight) -> None:
        """Count its tokens as given, though none is known yet."""
        overlap.take_off(self.scheduler, flight.plan, flight.sampled)
        self._record.committed(flight.record, self.scheduler)
        self._flying = flight

    def _land_flying(self) -> list[TokenOutput]:
        """Outputs of the step that is under way, if one is."""
        return [] if self._flying is None else self._land(self._flying)

    def _land(self, flight: Flight) -> list[TokenOutput]:
        """Wait for a step's tokens, commit them, and say what they mean."""
        try:
            tokens = flight.tokens.read() if flight.tokens is not None else []
        except ValueError as error:
            self._crash(flight, str(error))
            raise
        self._read_timers(flight, waited=bool(tokens))
        self._take_aborts()
        if flight is self._flying:
            self._flying = None
            overlap.land(self.scheduler, flight.sampled, tokens)
            outputs = self._requests.read(flight, tokens)
        else:
            self.scheduler.commit(flight.plan, tokens)
            outputs = self._requests.read(flight, tokens)
            self._record.committed(flight.record, self.scheduler)
        now = self.clock()
        for output in outputs:
            output.t = now
        self._record.stepped(flight.record, [o.request_id for o in outputs], now)
        self._requests.hand_out(outputs, now)
        return outputs

    def _read_timers(self, flight: Flight, waited: bool) -> None:
        """Device time of steps, read once a token was read back: by then they are all over."""
        if flight.timer is not None:
            self._timers.append((flight.record, flight.timer))
        if waited:
            for step, seconds in self._timers:
                step.utilization = {"device_seconds": seconds()}
            self._timers.clear()

    def stream(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        stop: threading.Event | None = None,
        **more: Any,
    ) -> Iterator[TokenOutput]:
        """Add a request and yield its outputs, running steps as needed; `more` goes to `add`.

        Closing the generator, or setting `stop`, cancels the request and frees its blocks. Several
        threads may stream from one engine: whoever runs a step, each gets all of its own tokens.
        """
        with self._lock:  # no other thread's step may come before there is an inbox
            request_id = self.add(prompt, params, **more)
            inbox = self._requests.open_inbox(request_id)
        try:
            while (inbox or request_id in self._requests) and not (stop and stop.is_set()):
                if not inbox:
                    self.step()
                elif (output := inbox.popleft()).finish_reason == "error":
                    raise RuntimeError(self.trace.requests[request_id].reason)
                else:
                    yield output
        finally:
            self.abort(request_id)

    @property
    def has_work(self) -> bool:
        """Is there a request to compute, or a step under way?"""
        return self.scheduler.has_work or self._flying is not None

    # ------------------------------------------------------------ inside

    def _crash(self, flight: Flight, reason: str) -> None:
        """A step under way came to nothing: what its requests know by now cannot be trusted."""
        if flight is self._flying:
            self._flying = None
            self._requests.fail(flight.sampled, reason)
            self.scheduler.reset_prefix_cache()

    def _take_aborts(self, *, blocking: bool = True) -> None:
        """End the requests whose abort was asked for; whoever holds the lock does it for all."""
        while self._aborts and self._lock.acquire(blocking=blocking):
            try:
                while self._aborts:
                    self._requests.end(self._aborts.popleft())
            finally:
                self._lock.release()

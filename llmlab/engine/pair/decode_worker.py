"""The worker that takes requests, has long prompts computed by the other one, and decodes.

One thread runs the engine. A second one waits for what comes over the link, stores keys and values
in blocks that only it may touch, and passes every other message on to the first.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from llmlab.engine import Engine, TokenOutput
from llmlab.engine.model import Model
from llmlab.engine.pair.fault import Fault
from llmlab.engine.pair.job import PairJob
from llmlab.engine.pair.link import Link, LinkLost
from llmlab.engine.pair.prefill_worker import slots_of
from llmlab.engine.pair.protocol import Ended, KVReceiver, Message
from llmlab.engine.pair.queues import QueueLog
from llmlab.sched.remote_prefill import RemotePrefill
from llmlab.sched.request import Request, SamplingParams

POLL_S = 0.005

Emit = Callable[[dict[str, Any]], None]


class DecodeWorker:
    """Runs the job's prompts to their end, with the prefill worker or, if it is lost, without."""

    def __init__(self, model: Model, job: PairJob, link: Link, emit: Emit) -> None:
        self.job, self.link, self.emit = job, link, emit
        self.scheduler = RemotePrefill(
            job.config, self._ask, local_below=job.local_below, vocab_size=model.config.vocab_size
        )
        self.engine = Engine(model, job.config, self.scheduler)
        self.receiver = KVReceiver(
            self.scheduler.blocks,
            model.config.num_hidden_layers,
            link.send,
            timeout_ns=int(job.timeout_s * 1e9),
        )
        self.fault = Fault(job.kill, "decode", link)
        self.queues = QueueLog()
        self.tokens: dict[str, list[int]] = {}
        self.refused: dict[str, str] = {}
        self.retried: dict[str, str] = {}  # request -> why it came back
        self.asked: dict[str, list[int]] = {}  # request -> [t ns, first position to move]
        self.layers: list[list[Any]] = []  # name, layer, t sent, t stored, bytes, tokens
        self.ended = "ok"
        self._tables: dict[str, list[int]] = {}
        self._events: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._half = model.config.num_hidden_layers // 2

    # ------------------------------------------------------------ the engine's thread

    def run(self) -> None:
        """Until every prompt has ended."""
        thread = threading.Thread(target=self._listen, name="kv-receiver", daemon=True)
        thread.start()
        start, todo = time.perf_counter(), self._schedule()
        try:
            while todo or self.scheduler.has_work or self.receiver.open:
                while todo and time.perf_counter() - start >= todo[0][0]:
                    self._add(*todo.pop(0)[1:])
                ran = self._step()
                self._handle(wait_s=0 if ran else POLL_S)
                self._give_up_late()
                self._log()
            if self.scheduler.connected:
                self.link.send({"kind": "stop"})
        except LinkLost as error:  # nothing was left to do but to say goodbye
            self._lose(str(error))
        finally:
            self._closing.set()
            thread.join(timeout=1.0)

    def report(self) -> dict[str, Any]:
        """What the measurement needs, as plain JSON."""
        self.scheduler.check_integrity()
        return {
            "ended": self.ended,
            "trace": list(self.engine.trace.jsonl_lines()),
            "queues": self.queues.points,
            "bytes": self.link.bytes_received,
            "tokens": self.tokens,
            "refused": self.refused,
            "retried": self.retried,
            "asked": self.asked,
            "layers": self.layers,
            "leaked_blocks": self.scheduler.num_blocks_used,
        }

    def _schedule(self) -> list[tuple[float, str, str | list[int]]]:
        """(second, id, prompt) in order of arrival."""
        times = self.job.arrivals or [0.0] * len(self.job.prompts)
        numbered = enumerate(zip(times, self.job.prompts, strict=True))
        return sorted(
            ((t, f"req-{i}", prompt) for i, (t, prompt) in numbered), key=lambda entry: entry[0]
        )

    def _add(self, name: str, prompt: str | list[int]) -> None:
        self.tokens[name] = []
        params = SamplingParams(max_tokens=self.job.max_tokens)
        try:
            self.engine.add(prompt, params, request_id=name)
        except ValueError as error:
            self.refused[name] = str(error)

    def _step(self) -> bool:
        """One engine step. False: nothing could run."""
        before = len(self.engine.trace.steps)
        outputs = self.engine.step()
        if outputs:
            self._put_out(outputs)
        return len(self.engine.trace.steps) > before

    def _put_out(self, outputs: list[TokenOutput]) -> None:
        for output in outputs:
            self.tokens[output.request_id] += output.token_ids
        over = [o.request_id for o in outputs if o.finish_reason]
        got = {o.request_id: o.token_ids for o in outputs}
        self.emit({"event": "tokens", "got": got, "over": over})

    def _ask(self, request: Request, first: int) -> None:
        """Called by the scheduler, in the middle of a plan: a lost link is dealt with later."""
        name, now = request.request_id, time.perf_counter_ns()
        self._tables[name] = list(request.block_ids)
        self.asked[name] = [now, first]
        try:
            self.receiver.ask(name, request.prompt_token_ids, first, now)
        except LinkLost as error:
            self._events.put({"kind": "lost", "reason": str(error)})
        self.fault.at("before")

    def _handle(self, wait_s: float) -> None:
        """All messages that are there; waits for the first one at most so long."""
        while True:
            try:
                message = self._events.get(timeout=wait_s) if wait_s else self._events.get_nowait()
            except queue.Empty:
                return
            wait_s = 0
            if message["kind"] == "lost":
                self._lose(message["reason"])
                continue
            try:
                self._settle(self.receiver.on(message, time.perf_counter_ns()))
            except LinkLost as error:
                self._lose(str(error))
            if message["kind"] == "done":
                self.fault.at("after")

    def _give_up_late(self) -> None:
        try:
            self._settle(self.receiver.tick(time.perf_counter_ns()))
        except LinkLost as error:
            self._lose(str(error))
        if self.receiver.silent and self.scheduler.connected:
            self._lose(f"the prefill worker was silent for {2 * self.job.timeout_s:g} s")

    def _lose(self, reason: str) -> None:
        """No prefill worker any more: whatever it had is computed here."""
        if self.scheduler.connected:
            self.ended = f"alone since the prefill worker was lost: {reason}"
        self.scheduler.connected = False
        self.link.close()
        self._settle(self.receiver.lost(reason))

    def _settle(self, ended: list[Ended]) -> None:
        for name, reason in ended:
            if reason is None:
                self.scheduler.arrived(name)
            else:
                self.retried[name] = reason
        self.scheduler.retry_locally([e.name for e in ended if e.reason is not None])

    def _log(self) -> None:
        self.queues.add(self.scheduler, len(self.receiver.open))

    # ------------------------------------------------------------ the receiving thread

    def _listen(self) -> None:
        try:
            while not self._closing.is_set():
                for message in self.link.receive(0.1):
                    if message["kind"] == "layer":
                        self._take(message)
                    else:
                        self._events.put(message)
        except LinkLost as error:
            self._events.put({"kind": "lost", "reason": str(error)})
        except (KeyError, TypeError, ValueError, IndexError) as error:
            self._events.put({"kind": "lost", "reason": f"a message made no sense: {error!r}"})

    def _take(self, message: Message) -> None:
        """The tensor that follows a header, into its blocks if it is still wanted."""
        name, layer = message["name"], message["layer"]
        start, end = message["start"], message["end"]
        kv = self.engine.runner.kv
        shape = (2, end - start, *kv.k.shape[3:])  # [2, n, Hkv, D]
        data = torch.empty(shape, dtype=kv.k.dtype, device=kv.k.device)
        self.link.receive_tensor(data)

        def write() -> None:
            slots = slots_of(self._tables[name], start, end, kv.k.shape[2]).to(kv.k.device)
            kv.write(layer, data[0], data[1], slots, padded=False)

        now = time.perf_counter_ns()
        if self.receiver.take(name, layer, start, end, write, now):
            stored = time.perf_counter_ns()
            size = data.numel() * data.element_size()
            self.layers.append([name, layer, message["at"], stored, size, end - start])
        if layer == self._half:
            self.fault.at("during")

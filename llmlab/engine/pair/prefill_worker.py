"""The worker that computes prompts and sends their keys and values away, layer by layer.

It runs the project's own engine with one output token a request. Its attention is wrapped: when it
is called for layer l, the layer's new keys and values are in the cache, so they are handed to the
wire there and travel while this layer's attention and the next layers are computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from llmlab.config import EngineConfig
from llmlab.engine.attention import Attention
from llmlab.engine.batch import Batch
from llmlab.engine.engine import Engine
from llmlab.engine.model import Model
from llmlab.engine.pair.fault import Fault
from llmlab.engine.pair.job import PairJob
from llmlab.engine.pair.link import Link, LinkLost
from llmlab.engine.pair.protocol import KVSender, Message
from llmlab.engine.pair.queues import QueueLog
from llmlab.engine.runner import Runner
from llmlab.sched.chunked import Chunked
from llmlab.sched.plan import StepPlan
from llmlab.sched.request import SamplingParams

POLL_S = 0.02

SendLayer = Callable[[str, int, int, list[int], torch.Tensor, torch.Tensor], None]


class SendingRunner(Runner):
    """A runner that shows every layer's cache to `send_layer` while the pass goes on.

    send_layer(name, layer, computed, block_ids, k_cache, v_cache): this request's first `computed`
    positions of this layer are written. hold(name, block_ids): its last tokens are about to be
    computed. overlap False: all layers are shown after the pass. It is the plain runner, because
    compiled passes and CUDA graphs call nothing between two layers.
    """

    def __init__(
        self,
        model: Model,
        config: EngineConfig,
        attention: str | Attention,
        *,
        send_layer: SendLayer,
        hold: Callable[[str, list[int]], None],
        overlap: bool,
    ) -> None:
        super().__init__(model, config, attention)
        self._inner = self.attention
        self.attention = self._attend
        self.send_layer, self.hold, self.overlap = send_layer, hold, overlap
        self._parts: list[tuple[str, int, list[int]]] = []
        self._layer = 0
        self._whole: Batch | None = None

    def build(self, plan: StepPlan) -> Batch:
        self._layer = 0
        self._parts = []
        for request, n in plan.scheduled:
            computed = request.num_computed_tokens + n
            self._parts.append((request.request_id, computed, request.block_ids))
            if computed == request.num_tokens:
                self.hold(request.request_id, request.block_ids)
        self._whole = super().build(plan)
        return self._whole

    def forward(self, batch: Batch) -> torch.Tensor:
        logits = super().forward(batch)
        for layer in range(self.model.config.num_hidden_layers):  # what was not shown on the way
            self._show(layer, *self.kv.layer(layer))
        return logits

    def _attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: Batch
    ) -> torch.Tensor:
        if self.overlap and batch is self._whole:  # not a part of it, run alone for lack of memory
            self._show(self._layer, k, v)
        self._layer += 1
        return self._inner(q, k, v, batch)

    def _show(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        for name, computed, block_ids in self._parts:
            self.send_layer(name, layer, computed, block_ids, k, v)


class PrefillWorker:
    """Serves `ask` messages until it is told to stop or the link is lost."""

    def __init__(self, model: Model, job: PairJob, link: Link) -> None:
        config = job.prefill_config
        scheduler = Chunked(config, vocab_size=model.config.vocab_size)
        self.link = link
        self.sender = KVSender(
            scheduler.blocks,
            model.config.num_hidden_layers,
            link.send,
            timeout_ns=int(job.timeout_s * 1e9),
        )
        make = partial(
            SendingRunner, send_layer=self._send_layer, hold=self._hold, overlap=job.overlap
        )
        self.engine = Engine(model, config, scheduler, runner=make)
        self.scheduler = scheduler
        self.fault = Fault(job.kill, "prefill", link)
        self.queues = QueueLog()
        self._alive_every = int(job.timeout_s * 1e9) // 5
        self._alive_at = 0
        self._half = model.config.num_hidden_layers // 2
        self._stopped = False

    def run(self) -> str:
        """Returns "ok", or why it ended early."""
        try:
            while not self._stopped:
                for message in self.link.receive(0 if self.engine.has_work else POLL_S):
                    self._on(message)
                if self.engine.has_work:
                    self._step()
                self._tick()
            self.link.flush()
        except LinkLost as error:
            for name in self.sender.lost():
                self.engine.abort(name)
            return str(error)
        finally:
            self._log()
        return "ok"

    def report(self, ended: str) -> dict[str, Any]:
        """What the other side of the measurement needs, as plain JSON."""
        self.scheduler.check_integrity()
        return {
            "ended": ended,
            "trace": list(self.engine.trace.jsonl_lines()),
            "queues": self.queues.points,
            "bytes": self.link.bytes_sent,
            "unacknowledged": self.sender.unacknowledged,
            "leaked_blocks": self.scheduler.num_blocks_used,
        }

    def _on(self, message: Message) -> None:
        self._stopped = self._stopped or message.get("kind") == "stop"
        orders = self.sender.on(message)
        for name, prompt in orders.start:
            self.fault.at("before")
            try:
                self.engine.add(prompt, SamplingParams(max_tokens=1), request_id=name)
            except ValueError as error:
                self.sender.refuse(name, f"the prefill worker cannot take it: {error}")
        for name in orders.stop:
            self.engine.abort(name)

    def _step(self) -> None:
        for output in self.engine.step():
            self.sender.done(output.request_id, time.perf_counter_ns())
            self.fault.at("after")

    def _tick(self) -> None:
        now = time.perf_counter_ns()
        self.sender.tick(now)
        if now >= self._alive_at:
            self.sender.alive()
            self._alive_at = now + self._alive_every
        self._log()

    def _log(self) -> None:
        self.queues.add(self.scheduler, len(self.sender.open))

    def _hold(self, name: str, block_ids: list[int]) -> None:
        self.sender.hold(name, block_ids, time.perf_counter_ns())

    def _send_layer(
        self,
        name: str,
        layer: int,
        computed: int,
        block_ids: list[int],
        k: torch.Tensor,
        v: torch.Tensor,
    ) -> None:
        """Gather what is new of k, v [N, B, Hkv, D] and hand it to the wire."""
        part = self.sender.part(name, layer, computed)
        if part is None:
            return
        if layer == self._half and self.fault.at("during"):
            raise LinkLost("the link was cut on purpose")
        slots = slots_of(block_ids, *part, k.shape[1]).to(k.device)
        data = torch.stack((k.flatten(0, 1)[slots], v.flatten(0, 1)[slots]))  # [2, n, Hkv, D]
        start, end = part
        now = time.perf_counter_ns()
        header = {"kind": "layer", "name": name, "layer": layer, "start": start, "end": end}
        self.link.send({**header, "at": now})
        self.link.send_tensor(data)


def slots_of(block_ids: list[int], start: int, end: int, block_size: int) -> torch.Tensor:
    """Slots [end - start] int64 of these positions."""
    positions = torch.arange(start, end)
    table = torch.tensor(block_ids, dtype=torch.int64)
    return table[positions // block_size] * block_size + positions % block_size

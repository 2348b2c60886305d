"""Both sides of a pair in one process, over a link that may lose, repeat and reorder messages.

The schedulers, pools and protocol objects are the real ones. The model is the history model, once
for each of two layers: whatever is read from a wrong block, too early or after it was given to
somebody else is noticed as a wrong history.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from llmlab.config import EngineConfig
from llmlab.engine.pair.protocol import KVReceiver, KVSender
from llmlab.sched import Chunked, Request, SamplingParams, StepPlan
from llmlab.sched.oracle import HistoryModel, Slot, solo
from llmlab.sched.remote_prefill import RemotePrefill

VOCAB, LAYERS, TIMEOUT = 97, 2, 100


class Layers:
    """A pool of LAYERS layers, each with its own content."""

    def __init__(self, config: EngineConfig) -> None:
        self.size = config.block_size
        self.models = [
            HistoryModel(config.num_blocks, config.block_size, VOCAB) for _ in range(LAYERS)
        ]

    def forward(self, plan: StepPlan) -> list[int]:
        tokens, *_ = [model.forward(plan) for model in self.models]
        return tokens

    def read(self, layer: int, table: list[int], start: int, end: int) -> list[Slot]:
        return self.models[layer].read(table)[start:end]

    def write(self, layer: int, table: list[int], start: int, content: list[Slot]) -> None:
        for position, slot in enumerate(content, start):
            place = table[position // self.size] * self.size + position % self.size
            self.models[layer].slots[place] = slot


@dataclass
class Pair:
    """to_prefill, to_decode: messages on their way; the test decides what becomes of them."""

    config: EngineConfig
    prefill_config: EngineConfig
    local_below: int = 0
    now: int = 0
    connected: bool = True
    to_prefill: list[dict[str, Any]] = field(default_factory=list)
    to_decode: list[dict[str, Any]] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    retried: dict[str, str] = field(default_factory=dict)
    moved: dict[str, int] = field(default_factory=dict)
    arrived: list[str] = field(default_factory=list)
    preempted_there: int = 0

    def __post_init__(self) -> None:
        self.decode = RemotePrefill(
            self.config, self._ask, local_below=self.local_below, vocab_size=VOCAB
        )
        self.prefill = Chunked(self.prefill_config, vocab_size=VOCAB)
        self.here, self.there = Layers(self.config), Layers(self.prefill_config)
        self.receiver = KVReceiver(
            self.decode.blocks, LAYERS, self.to_prefill.append, timeout_ns=TIMEOUT
        )
        self.sender = KVSender(
            self.prefill.blocks, LAYERS, self.to_decode.append, timeout_ns=TIMEOUT
        )
        self.tables: dict[str, list[int]] = {}
        self.acks: list[str] = []

    # ------------------------------------------------------------ what a test does

    def add(self, prompt: list[int], max_tokens: int = 3) -> Request:
        request = Request(f"r{len(self.requests)}", prompt, SamplingParams(max_tokens=max_tokens))
        self.decode.add(request)
        self.requests.append(request)
        return request

    def abort(self, name: str) -> None:
        self.decode.abort(name)
        self.receiver.cancel(name, self.now)
        self.check()

    def decode_step(self) -> None:
        plan = self.decode.plan()
        self.check()
        self.decode.commit(plan, self.here.forward(plan))
        self.check()

    def prefill_step(self) -> None:
        plan = self.prefill.plan()
        self.preempted_there += len(plan.preempted)
        parts = [(r, r.num_computed_tokens + n) for r, n in plan.scheduled]
        for request, computed in parts:
            if computed == request.num_tokens:
                self.sender.hold(request.request_id, request.block_ids, self.now)
        tokens = self.there.forward(plan)
        for layer in range(LAYERS):
            for request, computed in parts:
                self._send_part(request, layer, computed)
        finished = self.prefill.commit(plan, tokens)
        for request in finished:
            self.sender.done(request.request_id, self.now)
        self.check()

    def to_prefill_deliver(self, index: int = 0, *, keep: bool = False) -> None:
        message = self.to_prefill[index] if keep else self.to_prefill.pop(index)
        if message["kind"] == "ack":
            self.acks.append(message["name"])
        orders = self.sender.on(message)
        for name, prompt in orders.start:
            try:
                self.prefill.add(Request(name, prompt, SamplingParams(max_tokens=1)))
            except ValueError as error:
                self.sender.refuse(name, str(error))
        for name in orders.stop:
            self.prefill.abort(name)
        self.check()

    def to_decode_deliver(self, index: int = 0, *, keep: bool = False) -> None:
        message = self.to_decode[index] if keep else self.to_decode.pop(index)
        if message["kind"] == "layer":
            self._take(message)
        else:
            self._settle(self.receiver.on(message, self.now))
        self.check()

    def wait(self, time: int) -> None:
        self.now += time
        self._settle(self.receiver.tick(self.now))
        self.sender.tick(self.now)
        if self.receiver.silent and self.connected:
            self.cut("silent")
        self.check()

    def cut(self, reason: str = "cut") -> None:
        """The link is gone; whatever was on its way is lost. Each side notices."""
        self.connected = self.decode.connected = False
        self._settle(self.receiver.lost(reason))
        for name in self.sender.lost():
            self.prefill.abort(name)
        self.to_prefill.clear()
        self.to_decode.clear()
        self.check()

    def run(self, most: int = 400) -> Pair:
        """To the end over a link that behaves from now on; no more than `most` rounds."""
        for _ in range(most):
            while self.to_prefill:
                self.to_prefill_deliver()
            if self.prefill.has_work:
                self.prefill_step()
            if self.connected:
                self.sender.alive()
            while self.to_decode:
                self.to_decode_deliver()
            if not (self.decode.has_work or self.receiver.open or self.sender.open):
                break
            if self.decode.has_work:
                self.decode_step()
            self.wait(TIMEOUT // 4)
        self.check_over()
        return self

    # ------------------------------------------------------------ laws

    def check(self) -> None:
        self.decode.check_integrity()
        self.prefill.check_integrity()

    def check_over(self) -> None:
        for request in self.requests:
            assert request.finished, f"{request.request_id} never ended"
            whole, reason = solo(
                request.prompt_token_ids, request.params, request.max_tokens, None, VOCAB
            )
            if request.finish_reason == "abort":
                assert request.output_token_ids == whole[: len(request.output_token_ids)]
            else:
                assert (request.output_token_ids, request.finish_reason) == (whole, reason)
        for side in (self.decode, self.prefill):
            assert side.num_blocks_used == 0, "a block leaked"
            assert side.blocks.num_holds == 0
        assert (self.receiver.open, self.sender.open) == ([], [])
        assert len(self.arrived) == len(set(self.arrived)), "completed twice"

    # ------------------------------------------------------------ inside

    def _ask(self, request: Request, first: int) -> None:
        self.tables[request.request_id] = list(request.block_ids)
        self.receiver.ask(request.request_id, request.prompt_token_ids, first, self.now)

    def _send_part(self, request: Request, layer: int, computed: int) -> None:
        part = self.sender.part(request.request_id, layer, computed)
        if part is None:
            return
        header = {"kind": "layer", "name": request.request_id, "layer": layer}
        content = self.there.read(layer, request.block_ids, *part)
        self.to_decode.append({**header, "start": part[0], "end": part[1], "data": content})

    def _take(self, message: dict[str, Any]) -> None:
        name, layer, start = message["name"], message["layer"], message["start"]

        def write() -> None:
            table = self.tables[name]
            assert self.decode.blocks._held[name] == table, "written without a hold"
            for request in self.decode.running:
                touched = table[start // self.config.block_size :]
                assert not set(touched) & set(request.block_ids), "written under a running request"
            self.here.write(layer, table, start, message["data"])

        if self.receiver.take(name, layer, start, message["end"], write, self.now):
            self.moved[name] = self.moved.get(name, 0) + message["end"] - start

    def _settle(self, ended: list[Any]) -> None:
        for name, reason in ended:
            if reason is None:
                assert self.decode.arrived(name) or name not in self.decode.arriving
                self.arrived.append(name)
            else:
                self.retried[name] = reason
        self.decode.retry_locally([e.name for e in ended if e.reason is not None])


def pair(*, local_below: int = 0, cache: bool = False, prefill: Any = None, **sizes: int) -> Pair:
    """B, N, T, S, L for the long names; `prefill`: changes for the prefill side."""
    names = {
        "B": "block_size",
        "N": "num_blocks",
        "T": "max_num_batched_tokens",
        "S": "max_num_seqs",
        "L": "max_model_len",
    }
    values: dict[str, Any] = {"B": 4, "N": 16, "T": 8, "S": 4, "L": 60, **sizes}
    config = EngineConfig(
        **{names[key]: value for key, value in values.items()}, enable_prefix_caching=cache
    )
    changes = {names.get(key, key): value for key, value in (prefill or {}).items()}
    return Pair(config, config.with_(**changes), local_below)


def prompt(length: int, seed: int = 1) -> list[int]:
    return [(seed * i * i + 3 * i + seed) % VOCAB for i in range(length)]

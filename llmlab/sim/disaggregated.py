"""Prefill and decode on separate simulated devices: xP yD pools, and a link between them.

The policy is the real pair's, and so are the schedulers: a request goes to a decode worker
(`sched.remote_prefill`), which takes blocks for the whole prompt before it asks a prefill worker
to fill them; a short prompt it computes itself; a full pool asks for nothing. The prefill worker
keeps its blocks until the transfer has been acknowledged.

    decode   ask --+                                       arrived | last position | decode ...
    prefill        | queue | step, layer by layer  |              ^
    link                      [layer 0][layer 1] ... [layer L - 1]+
                                            computed ^   visible  ^

How a transfer is timed. The layers of a step take equal shares of it, and the keys and values of
each leave in one message when it is done, behind everything that waits for the same link. One
outgoing link a prefill worker, one incoming link a decode worker, both at the link's rate. What
is on the wire slows no computation down. No torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from llmlab.config import EngineConfig, require
from llmlab.perf.interconnect import Interconnect
from llmlab.sched.base import BaseScheduler
from llmlab.sched.plan import StepPlan
from llmlab.sched.remote_prefill import RemotePrefill
from llmlab.sched.request import Request, SamplingParams
from llmlab.sim.fleet import Replicas
from llmlab.sim.server import Clock, Server
from llmlab.sim.step_time import NS
from llmlab.sim.world import Live
from llmlab.trace import TokenEvent, Trace


@dataclass(slots=True, eq=False)
class Move:
    """One prompt's keys and values on their way. Stamps in ns on the clock of the run.

    t_prefill_end: end of the step that computed the last of them; t_first_transfer: first byte
    out; t_last_transfer: last byte in. busy_ns: time the link spent on them.
    """

    request_id: str
    source: str
    target: str
    tokens: int = 0
    bytes: int = 0
    t_asked: int = 0
    t_prefill_end: int | None = None
    t_first_transfer: int | None = None
    t_last_transfer: int | None = None
    busy_ns: int = 0

    @property
    def visible_ns(self) -> int | None:
        """What computing does not hide: from the end of the prefill to the last byte."""
        if self.t_last_transfer is None or self.t_prefill_end is None:
            return None
        return self.t_last_transfer - self.t_prefill_end

    def to_dict(self) -> dict[str, str | int | None]:
        """Every field by its name, and visible_ns."""
        names = (*(f.name for f in fields(self)), "visible_ns")
        return {name: getattr(self, name) for name in names}


@dataclass(slots=True)
class _Worker:
    """A prefill worker: its server, its way out, and the prompt tokens it still owes."""

    server: Server
    scheduler: BaseScheduler
    link_free: int = 0
    owes: int = 0


@dataclass(slots=True, eq=False)
class _Job:
    """A prompt that a decode worker has asked for."""

    move: Move
    asker: int
    worker: _Worker
    request: Request  # as the prefill worker's scheduler sees it
    last_byte: int = 0  # of what was sent so far
    gone: bool = False  # its client left: the blocks wait for the last byte


class Disaggregated(Replicas):
    """A pool of prefill workers and a pool of decode workers. `run` may be called once.

    kv_bytes: of one token, over all devices of a worker. layers: messages a step is cut into.
    links: side by side between two workers, each with an equal share of the bytes.
    """

    def __init__(
        self,
        prefill: Sequence[BaseScheduler],
        decode_config: EngineConfig,
        num_decode: int,
        clock: Clock,
        link: Interconnect,
        *,
        kv_bytes: int,
        layers: int,
        links: int = 1,
        local_below: int = 64,
        record_steps: bool = True,
        leap: bool = True,
    ) -> None:
        require(len(prefill) > 0, "Disaggregated", "prefill", prefill, "at least one scheduler")
        self.link, self.kv_bytes, self.layers, self.links = link, kv_bytes, layers, links
        schedulers = [
            RemotePrefill(decode_config, self._asker(index), local_below=local_below)
            for index in range(num_decode)
        ]
        super().__init__(schedulers, clock, record_steps, leap, "decode")
        self._decode = schedulers
        self._in_free = [0] * num_decode  # when each way in has worked off what was sent to it
        self._latency = round(link.latency * NS)
        self._prefill = [
            _Worker(Server(self, s, clock, record_steps, leap, f"prefill {number}"), s)
            for number, s in enumerate(prefill)
        ]
        self.servers += [worker.server for worker in self._prefill]
        self._jobs: dict[str, _Job] = {}
        self.moves: list[Move] = []

    def run(self, workload: Any) -> Trace:
        trace = super().run(workload)
        trace.meta["moves"] = [move.to_dict() for move in self.moves]
        return trace

    # -- asking ------------------------------------------------------------------------------

    def _asker(self, index: int) -> Callable[[Request, int], None]:
        def ask(request: Request, first: int) -> None:
            self._ask(index, request)

        return ask

    def _ask(self, index: int, request: Request) -> None:
        """A decode worker holds blocks for a prompt; the least busy prefill worker fills them."""
        worker = min(self._prefill, key=lambda w: w.owes)
        name, prompt = request.request_id, request.prompt_token_ids
        params = SamplingParams(max_tokens=1, ignore_eos=True)
        copy = Request(name, prompt, params, priority=request.priority)
        target = self.answering[index].worker
        move = Move(name, worker.server.worker, target, t_asked=self.now)
        worker.owes += len(prompt)
        self._jobs[name] = job = _Job(move, index, worker, copy)
        self.at(self.now + self._latency, self._asked, job)

    def _asked(self, t: int, job: _Job) -> None:
        if job.gone:
            self._release(t, job)
            return
        try:
            job.worker.scheduler.add(job.request)
        except ValueError:  # it can never fit there: the decode worker computes it itself
            self._end(job)
            scheduler = self._decode[job.asker]
            self.answering[job.asker].interrupt(t)
            scheduler.retry_locally([job.request.request_id])
            scheduler.blocks.release(job.request.request_id)
            return
        self.moves.append(job.move)

    # -- moving ------------------------------------------------------------------------------

    def computed(self, server: Server, plan: StepPlan, start: int) -> None:
        """A prefill step is over: time its transfer, and hold what is not there yet."""
        worker = next((w for w in self._prefill if w.server is server), None)
        if worker is None:
            return
        stays = [(r, n) for r, n in plan.scheduled if not r.finished]
        # What is computed again after a preemption was sent the first time.
        jobs = [(self._jobs[r.request_id], r.num_computed_tokens + n) for r, n in stays]
        chunks = [(job, done - job.move.tokens) for job, done in jobs if done > job.move.tokens]
        if chunks:
            begin, sent = self._send_layers(worker, sum(n for _, n in chunks), start)
            for job, n in chunks:
                self._note(job, n, begin, sent)
        for request in plan.sampled:
            if not request.finished:
                job = self._jobs[request.request_id]
                worker.scheduler.blocks.hold(request.request_id, request.block_ids)
                job.move.t_prefill_end = self.now
                self.at(max(self.now, job.last_byte), self._arrived, job)

    def _note(self, job: _Job, tokens: int, begin: int, sent: int) -> None:
        """A chunk of a prompt was given to the link."""
        move = job.move
        job.last_byte = self._receive(job, tokens, begin, sent)
        move.tokens += tokens
        move.bytes += tokens * self.kv_bytes
        move.busy_ns += round(self._link_ns(tokens))
        if move.t_first_transfer is None:
            move.t_first_transfer = begin

    def _send_layers(self, worker: _Worker, tokens: int, start: int) -> tuple[int, int]:
        """(first byte out, last byte out) of a step from `start` to now on the worker's link.

        Layer l is computed at start + (l + 1) d / L and takes s on the link, after the layer
        before it: the last one is out at max over l of (when l could go + (L - l) s), which is
        largest at one of the two ends.
        """
        step, layers = self.now - start, self.layers
        each = self._link_ns(tokens) / layers
        begin = max(worker.link_free, start + step // layers)
        sent = max(begin + round(layers * each), self.now + round(each))
        worker.link_free = sent
        return begin, sent

    def _receive(self, job: _Job, tokens: int, begin: int, sent: int) -> int:
        """When the last byte is in: not before it was sent, nor before the way in is free."""
        free = max(self._in_free[job.asker], begin) + round(self._link_ns(tokens))
        self._in_free[job.asker] = free
        return max(sent, free)

    def _link_ns(self, tokens: int) -> float:
        """How long a link is busy with this many tokens of every layer."""
        return self.link.seconds(tokens * self.kv_bytes / self.links, self.layers) * NS

    def _arrived(self, t: int, job: _Job) -> None:
        """The last byte is in: the request runs there, and an acknowledgement goes back."""
        name, scheduler = job.request.request_id, self._decode[job.asker]
        self.answering[job.asker].interrupt(t)
        job.move.t_last_transfer = t
        scheduler.arrived(name)
        scheduler.blocks.release(name)
        self.at(t + self._latency, self._acknowledged, job)

    def _acknowledged(self, t: int, job: _Job) -> None:
        job.worker.scheduler.blocks.release(job.request.request_id)
        self._end(job)

    def _end(self, job: _Job) -> None:
        job.worker.owes -= job.request.num_prompt_tokens
        del self._jobs[job.request.request_id]

    # -- leaving -----------------------------------------------------------------------------

    def withdraw(self, live: Live) -> None:
        super().withdraw(live)
        job = self._jobs.get(live.request.request_id)
        if job is None or job.gone or job.move.t_prefill_end is not None:
            return  # what has been computed arrives, and frees its blocks then
        job.gone = True
        if job.worker.scheduler.abort(live.request.request_id):
            self.at(max(self.now, job.last_byte), self._release, job)

    def _release(self, t: int, job: _Job) -> None:
        """Nobody writes to the blocks of a prompt whose client has left any more."""
        self.answering[job.asker].interrupt(t)
        self._decode[job.asker].blocks.release(job.request.request_id)
        self._end(job)

    def may_wait(self, server: Server) -> bool:
        """For keys and values that are on their way, or for blocks that are."""
        scheduler = server.scheduler
        return isinstance(scheduler, BaseScheduler) and scheduler.blocks.num_holds > 0

    # -- only a decode worker speaks to clients ----------------------------------------------

    def emit(self, requests: Sequence[Request], events: list[TokenEvent]) -> None:
        super().emit([r for r in requests if self._answers(r)], events)

    def finish(self, request: Request) -> None:
        if self._answers(request):
            super().finish(request)

    def _answers(self, request: Request) -> bool:
        live = self.live.get(request.request_id)
        return live is not None and live.request is request

"""Several simulated servers under one clock, and the plain way to use them: equal replicas.

The loop is that of discrete events: of everything that will happen, in any server or outside,
the first in time happens next. No torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmlab.config import require_int
from llmlab.sched.plan import Scheduler
from llmlab.sim.server import Clock, NothingPlanned, Server
from llmlab.sim.world import Live, World
from llmlab.trace import Trace


class Fleet(World):
    """Servers side by side. A subclass says who serves a request; `run` may be called once."""

    def __init__(self, clock: Clock, shares_prefixes: bool = False) -> None:
        super().__init__(clock.constants, shares_prefixes)
        self.servers: list[Server] = []

    def run(self, workload: Any) -> Trace:
        """Serve the whole workload (anything `as_load` takes) and return its trace.

        The steps of all servers stand in it in order of their start, each with its worker.
        """
        self.open(workload)
        while self._advance():
            self._begin_idle()
        self.trace.steps.sort(key=lambda step: (step.t_start, step.worker))
        for index, step in enumerate(self.trace.steps):
            step.index = index
        return self.trace

    def _advance(self) -> bool:
        """Let everything of the next instant happen. False: nothing will happen any more."""
        instants = [s.busy_until for s in self.servers if s.busy_until is not None]
        if self.next_at is not None:
            instants.append(self.next_at)
        if not instants:
            return False
        self.now = min(instants)
        self.catch_up()  # what comes from outside comes before the commits of its instant
        for server in self.servers:
            if server.busy_until == self.now:
                server.end()
        self.catch_up()
        return True

    def _begin_idle(self) -> None:
        for server in self.servers:
            if server.busy_until is None and server.scheduler.has_work:
                try:
                    server.begin()
                except NothingPlanned:
                    if not self.may_wait(server):
                        raise

    def may_wait(self, server: Server) -> bool:
        """May a server that has work do nothing for now, because help is on its way?"""
        return False


class Replicas(Fleet):
    """Servers that answer requests; each goes to the one whose requests need the fewest tokens.

    A server with the same load as another comes first if it stands first.
    """

    def __init__(
        self,
        schedulers: Sequence[Scheduler],
        clock: Clock,
        record_steps: bool = True,
        leap: bool = True,
        worker: str = "replica",
    ) -> None:
        require_int("Replicas", "schedulers", len(schedulers), 1)
        super().__init__(clock, schedulers[0].config.enable_prefix_caching)
        self.answering = [
            Server(self, scheduler, clock, record_steps, leap, f"{worker} {number}")
            for number, scheduler in enumerate(schedulers)
        ]
        self.servers = list(self.answering)
        self._tokens = [0] * len(schedulers)
        self._at: dict[str, int] = {}

    def answers(self, live: Live) -> Server:
        """The server that a live request was given to."""
        return self.answering[self._at[live.request.request_id]]

    def accept(self, live: Live) -> None:
        index = min(range(len(self.answering)), key=self._tokens.__getitem__)
        server = self.answering[index]
        server.interrupt(self.now)
        server.scheduler.add(live.request)
        self._at[live.request.request_id] = index
        self._tokens[index] += _size(live)

    def withdraw(self, live: Live) -> None:
        server = self.answers(live)
        server.interrupt(self.now)
        server.scheduler.abort(live.request.request_id)

    def over(self, live: Live, t_end: int) -> None:
        index = self._at.pop(live.request.request_id, None)
        if index is not None:
            self._tokens[index] -= _size(live)
        super().over(live, t_end)


def _size(live: Live) -> int:
    return live.arrival.prompt_tokens + live.arrival.output_tokens

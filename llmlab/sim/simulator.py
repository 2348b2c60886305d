"""The real scheduler under a virtual clock: one server and its clients.

The loop is the engine's, with the forward pass replaced by a predicted duration and the tokens
by a length: every request writes exactly `output_tokens` tokens. Time to first token therefore
has the same parts as on a server (drawn in sim.world).

This module does not know how a duration is predicted (sim.step_time) nor what a metric is. No
torch.
"""

from __future__ import annotations

from typing import Any

from llmlab.sched.plan import Scheduler
from llmlab.sim.server import Clock, Server
from llmlab.sim.world import Live, World
from llmlab.trace import Trace

NOTE = "simulated: durations are predicted by a cost model, nothing was run"


class Simulator(World):
    """One simulated server. `run` may be called once.

    record_steps=False leaves the step records out (the requests' stamps stay exact).
    leap=False takes every step on its own; the result is the same, only slower.
    """

    def __init__(
        self, scheduler: Scheduler, clock: Clock, record_steps: bool = True, leap: bool = True
    ) -> None:
        super().__init__(clock.constants, scheduler.config.enable_prefix_caching)
        self.scheduler = scheduler
        self.server = Server(self, scheduler, clock, record_steps, leap)

    def run(self, workload: Any) -> Trace:
        """Serve the whole workload (anything `as_load` takes) and return its trace."""
        self.open(workload)
        server = self.server
        while self._wait_for_work():
            self.now = server.begin(self.next_at)
            self.catch_up()  # clients that leave during the step get nothing from it
            server.end()
        return self.trace

    def _wait_for_work(self) -> bool:
        """Catch up; jump to what happens next while idle. False: all is done."""
        self.catch_up()
        while not self.scheduler.has_work:
            if self.next_at is None:
                return False
            self.now = max(self.now, self.next_at)
            self.catch_up()
        return True

    def accept(self, live: Live) -> None:
        self.scheduler.add(live.request)

    def withdraw(self, live: Live) -> None:
        self.scheduler.abort(live.request.request_id)

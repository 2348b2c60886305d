"""How long a worker's queues are over time. No torch."""

from __future__ import annotations

import time

from llmlab.sched.plan import Scheduler

Point = list[int]  # t, waiting, running, moving, blocks used


class QueueLog:
    """A point whenever something changed: [t ns, waiting, running, moving, blocks used]."""

    def __init__(self) -> None:
        self.points: list[Point] = []

    def add(self, scheduler: Scheduler, moving: int) -> None:
        """moving: transfers that are not over."""
        state = [
            scheduler.num_waiting,
            scheduler.num_running,
            moving,
            scheduler.num_blocks_used,
        ]
        if not self.points or self.points[-1][1:] != state:
            self.points.append([time.perf_counter_ns(), *state])

"""Long work behind a panel: one job at a time, a stop flag, ten updates a second at most."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llmlab.trace import Trace

UPDATES_PER_SECOND = 10
Progress = Callable[[int, int, str], None]  # done, of how many, what


class Throttle:
    """True at most ten times a second, so a fast engine does not flood the page."""

    def __init__(self, per_second: float = UPDATES_PER_SECOND) -> None:
        self._gap = 1.0 / per_second
        self._last = float("-inf")

    def ready(self) -> bool:
        """True, and the gap begins anew; False while the last one is not over."""
        now = time.monotonic()
        if now - self._last < self._gap:
            return False
        self._last = now
        return True


@contextmanager
def painting(draw: Callable[[], None], stop: threading.Event) -> Iterator[None]:
    """Draw ten times a second while the block runs, until `stop` is set.

    On a thread of its own: done between engine steps, drawing would show up as stalls.
    """
    over = threading.Event()

    def paint() -> None:
        while not over.wait(1 / UPDATES_PER_SECOND):
            if not stop.is_set():
                draw()

    painter = threading.Thread(target=paint, daemon=True)
    painter.start()
    try:
        yield
    finally:
        over.set()
        painter.join()


def taken(trace: Trace) -> Trace:
    """What a trace holds now: an engine adds requests and steps to it while it is drawn."""
    return Trace(dict(trace.meta), dict(trace.requests), list(trace.steps))


Job = Callable[[threading.Event], None]


class LiveRun:
    """At most one job at a time. The job looks at its `stop` event between engine steps.

    A kernel may run callbacks on another thread while a cell is busy, so every change of state
    is under one lock: a start is never lost and two jobs never run side by side.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._next: Job | None = None
        self._stop = threading.Event()

    @property
    def busy(self) -> bool:
        return self._thread is not None

    def start(self, job: Job, *, queue: bool = False) -> bool:
        """Run `job(stop)` in the background.

        While another one runs: False, or with `queue` it becomes the one that runs next (the
        newest wins, so a dragged slider does not pile up work).
        """
        with self._lock:
            if self._thread is None:
                self._begin(job)
                return True
            if queue:
                self._next = job
            return queue

    def _begin(self, job: Job) -> None:
        """Under the lock. Each job has a stop flag of its own: a stop ends what ran before it."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(job, self._stop), daemon=True)
        self._thread.start()

    def _run(self, job: Job, stop: threading.Event) -> None:
        try:
            job(stop)
        finally:
            with self._lock:
                self._thread, following, self._next = None, self._next, None
                if following is not None:
                    self._begin(following)

    def cancel(self, wait: float = 0.0) -> bool:
        """Ask the job to stop, and wait up to `wait` seconds. True when nothing runs any more.

        What waits behind it does not run; what is started after this call does.
        """
        with self._lock:
            self._stop.set()
            self._next = None
            thread = self._thread
        if thread is not None and wait and thread is not threading.current_thread():
            thread.join(wait)
        return not self.busy

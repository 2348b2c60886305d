"""Long work behind a panel: one thread, one stop flag, updates ten times a second at most."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

UPDATES_PER_SECOND = 10


class Throttle:
    """True at most ten times a second, so a fast engine does not flood the page."""

    def __init__(self, per_second: float = UPDATES_PER_SECOND) -> None:
        self._gap = 1.0 / per_second
        self._last = float("-inf")

    def ready(self) -> bool:
        now = time.monotonic()
        if now - self._last < self._gap:
            return False
        self._last = now
        return True


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
            if self._thread is not None:
                self._next = job if queue else None
                return queue
            self._stop = threading.Event()
            self._thread = threading.Thread(target=self._loop, args=(job,), daemon=True)
            self._thread.start()
            return True

    def _loop(self, job: Job | None) -> None:
        while job is not None:
            try:
                job(self._stop)
            finally:
                with self._lock:
                    job, self._next = (None if self._stop.is_set() else self._next), None
                    if job is None:
                        self._thread = None

    def cancel(self, wait: float = 0.0) -> bool:
        """Ask the job to stop, and wait up to `wait` seconds. True when nothing runs any more."""
        with self._lock:
            self._stop.set()
            self._next = None
            thread = self._thread
        if thread is not None and wait and thread is not threading.current_thread():
            thread.join(wait)
        return not self.busy

"""What panels on two clocks share: simulated at once, real in the background, one at a time."""

from __future__ import annotations

import threading
from typing import Any

from llmlab.viz.live import LiveRun
from llmlab.viz.panels.controls import (
    REAL,
    SIMULATED,
    STOP_WAIT_S,
    button,
    place_menu,
)
from llmlab.viz.panels.panel import Panel
from llmlab.viz.widgets import toolkit


class TwoClocks(Panel):
    """Menu, Run, Stop and status of a panel; a panel says what its two clocks do.

    `_size()`: the knobs' values. `_simulated(size)`: run and show them in this thread.
    `_for_real(size, stop)`: run them in the background, until `stop` is set; `_ended(result, size,
    stopped)` shows what came of it. `_offer()`: what Run would do. A knob calls `_changed`.
    """

    def __init__(self, name: str, real: bool) -> None:
        self.live = LiveRun()
        self._told = False
        self.where = place_menu(real, name)
        self.go, self.halt = button("Run", f"{name}-run", "primary"), button("Stop", f"{name}-stop")
        self.status = toolkit().HTML()
        self._on_change(self._changed, self.where)
        self._on_click(self.start, self.go)
        self._on_click(self.live.cancel, self.halt)

    def start(self) -> None:
        """Run the knobs' values: at once if simulated, else in the background."""
        size = self._size()
        if self.where.value == SIMULATED:
            self._simulated(size)
        elif not self.live.start(lambda stop: self._job(size, stop)):
            self._say("busy", "Still running: press Stop first.")

    def tell(self, real: bool) -> None:
        """Let the menu show where code ran, and run nothing."""
        self._told = True
        try:
            self.where.value = REAL if real else SIMULATED
        finally:
            self._told = False

    def _changed(self) -> None:
        """The simulator answers a knob at once; a real run waits for Run."""
        if self._told:
            return
        if self.where.value == SIMULATED:
            self.live.cancel(wait=STOP_WAIT_S)
            self.start()
        elif not self.live.busy:
            self._say("info", self._offer())

    def _job(self, size: Any, stop: threading.Event) -> None:
        self.go.disabled = True
        try:
            result = self._for_real(size, stop)
            if not self._left(stop):
                self._ended(result, size, stop.is_set())
        except Exception as error:
            if not self._left(stop):
                self._fail(f"{type(error).__name__}: {error}")
        finally:
            self.go.disabled = False

    def _left(self, stop: threading.Event) -> bool:
        """Whether a real run was stopped for the simulator, whose answer stands already."""
        return stop.is_set() and self.where.value == SIMULATED

    # -- what a panel brings -----------------------------------------------------------------

    def _size(self) -> Any:
        raise NotImplementedError

    def _simulated(self, size: Any) -> None:
        raise NotImplementedError

    def _for_real(self, size: Any, stop: threading.Event) -> Any:
        raise NotImplementedError

    def _ended(self, result: Any, size: Any, stopped: bool) -> None:
        raise NotImplementedError

    def _offer(self) -> str:
        raise NotImplementedError

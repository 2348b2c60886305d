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
    `_for_real(size, stop)`: the same in the background, until `stop` is set. `_offer()`: what Run
    would do. A knob calls `_changed`.
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
            self._for_real(size, stop)
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")
        finally:
            self.go.disabled = False

    # -- what a panel brings -----------------------------------------------------------------

    def _size(self) -> Any:
        raise NotImplementedError

    def _simulated(self, size: Any) -> None:
        raise NotImplementedError

    def _for_real(self, size: Any, stop: threading.Event) -> None:
        raise NotImplementedError

    def _offer(self) -> str:
        raise NotImplementedError

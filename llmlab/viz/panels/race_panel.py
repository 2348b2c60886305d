"""Static against continuous batching: turn slots, requests and lengths, on either clock."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from llmlab.viz.figures.race import RACE_HEAD, race, race_rows, race_summary, update_race
from llmlab.viz.live import painting, taken
from llmlab.viz.panels.controls import Knob, menu_of
from llmlab.viz.panels.two_clocks import TwoClocks
from llmlab.viz.race import KINDS, Lap, draw_lengths, race_real, race_simulated
from llmlab.viz.show import Shown, boxed, live_figure, shown_table, table_html
from llmlab.viz.widgets import toolkit

if TYPE_CHECKING:
    from llmlab.engine.model import Model

Size = tuple[int, int, int, str]  # slots, requests, mean output tokens, kind of lengths


class RacePanel(TwoClocks):
    """A knob's move answers at once on the simulated GPU; on this machine, Run starts the race.

    `run(slots, requests, mean, kind)` is the same without a widget (`show_race` draws it).
    model: of the real races; without one only the simulated GPU is offered.
    """

    def __init__(
        self, model: Model | None = None, *, simulated_model: str = "llama-3.1-8b"
    ) -> None:
        super().__init__("race", model is not None)
        w = toolkit()

        self.model, self.simulated_model = model, simulated_model
        self.hardware = "h100-sxm"
        self.kind = menu_of("Output lengths", "kind", KINDS, "exponential")
        self.kind.add_class("llmlab-race-kind")
        self.slots = Knob("Slots (max_num_seqs)", 4, 2, 32, 1, "race-slots")
        self.requests = Knob("Requests", 16, 4, 128, 4, "race-requests")
        self.mean = Knob("Mean output tokens", 24, 4, 128, 4, "race-mean")
        self._on_change(self._changed, self.slots, self.requests, self.mean, self.kind)
        self.table = w.HTML()
        self.laps: list[Lap] = self._simulate(self._size())
        self.figure = live_figure(race(self.laps))
        self.widget = w.VBox(
            [
                self.where,
                self.kind,
                self.slots.widget,
                self.requests.widget,
                self.mean.widget,
                w.HBox([self.go, self.halt]),
                self.status,
                *boxed(self.figure),
                self.table,
            ]
        )
        self.widget.add_class("llmlab-race-panel")
        self._show(self.laps)

    # -- running ---------------------------------------------------------------------------

    def _size(self) -> Size:
        return self.slots.value, self.requests.value, self.mean.value, str(self.kind.value)

    def run(
        self, slots: int, requests: int, mean: int, kind: str, *, real: bool = False
    ) -> list[Lap]:
        """One race in this thread; a lap for each policy. The panel stays as its knobs say."""
        size = (slots, requests, mean, kind)
        return self._race(size, threading.Event()) if real else self._simulate(size)

    def _offer(self) -> str:
        return "Run races both policies on this machine, for real."

    def _simulated(self, size: Size) -> None:
        self._show(self._simulate(size))

    def _for_real(self, size: Size, stop: threading.Event) -> list[Lap]:
        return self._race(size, stop)

    def _ended(self, result: list[Lap], size: Size, stopped: bool) -> None:
        self._show(result)
        if stopped:
            self._say("stop", "Stopped; the figure shows what ran until then.")

    def _simulate(self, size: Size) -> list[Lap]:
        slots, requests, mean, kind = size
        lengths = draw_lengths(kind, requests, mean, slots)
        return race_simulated(lengths, slots, model=self.simulated_model, hardware=self.hardware)

    def _race(self, size: Size, stop: threading.Event) -> list[Lap]:
        """The real race, drawn while it runs."""
        slots, requests, mean, kind = size
        if self.model is None:
            raise ValueError("model = None: give RacePanel a model to race on this machine")
        running: list[Lap] = []
        with painting(lambda: self._paint(running), stop):
            return race_real(
                self.model,
                draw_lengths(kind, requests, mean, slots),
                slots,
                stop=stop,
                watch=lambda name, trace: running.append(Lap(name, slots, trace)),
            )

    def _paint(self, running: list[Lap]) -> None:
        laps = [replace(lap, trace=taken(lap.trace)) for lap in running]
        if laps:
            self._draw(laps)
            self._say("busy", f"Running {laps[-1].policy} on this machine, for real.")

    # -- drawing ---------------------------------------------------------------------------

    def _show(self, laps: list[Lap]) -> None:
        self.laps = laps
        self._draw(laps)
        self._say("ok", race_summary(laps))

    def _draw(self, laps: Sequence[Lap]) -> None:
        self.table.value = table_html(self._caption(laps), RACE_HEAD, race_rows(laps))
        with self.figure.batch_update():
            update_race(self.figure, laps)

    def _caption(self, laps: Sequence[Lap]) -> str:
        if laps and laps[0].trace.simulated:
            return f"The same as a table (simulated: {self.simulated_model} on {self.hardware})"
        return "The same as a table (measured on this machine)"

    def shown(self) -> Shown:
        caption = f"{race_summary(self.laps)} {self._caption(self.laps)}"
        return shown_table(caption, RACE_HEAD, race_rows(self.laps), self.widget, self.figure)

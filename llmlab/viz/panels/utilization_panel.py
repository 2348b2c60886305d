"""Run requests and watch what share of the machine's two ceilings their steps use."""

from __future__ import annotations

import threading
from html import escape
from typing import TYPE_CHECKING

from llmlab.perf.cost import CostModel, Precision
from llmlab.perf.hardware import Hardware, load_hardware
from llmlab.perf.roofline import PhaseSummary, by_phase
from llmlab.trace import Trace
from llmlab.viz.drive import drive, roomy
from llmlab.viz.figures.gauges import (
    GAUGES_HEAD,
    ceilings_text,
    gauges,
    gauges_rows,
    gauges_summary,
    update_gauges,
)
from llmlab.viz.live import painting, taken
from llmlab.viz.palette import origin
from llmlab.viz.panels.controls import Knob, guarded
from llmlab.viz.panels.two_clocks import TwoClocks
from llmlab.viz.show import Shown, boxed, live_figure, shown_table, table_html
from llmlab.viz.widgets import toolkit

if TYPE_CHECKING:
    from llmlab.engine.model import Model

Size = tuple[int, int, int]  # requests at once, prompt tokens, output tokens
WINDOW_NS = 1_000_000_000  # what a live gauge looks back on
MOST_TOKENS = 1024  # of one step: longer prompts come in chunks, some beside decodes


class UtilizationPanel(TwoClocks):
    """Gauges of one run: live and real on this machine, at once on the simulated GPU.

    `run(requests, prompt, output, real=...)` is the same without a widget.
    model, ceilings: of the real runs; without a model only the simulated GPU is offered, without
    ceilings those that `llmlab calibrate` kept are used.
    """

    def __init__(
        self,
        model: Model | None = None,
        ceilings: Hardware | None = None,
        *,
        simulated_model: str = "llama-3.1-8b",
        hardware: str = "h100-sxm",
    ) -> None:
        super().__init__("use", model is not None)
        w = toolkit()
        self.model, self.measured = model, ceilings
        self.simulated_model, self.device = simulated_model, load_hardware(hardware)
        self.simulated = True
        self.phases: list[PhaseSummary] = []
        self.requests = Knob("Requests at once", 8, 1, 64, 1, "use-requests")
        self.prompt = Knob("Prompt tokens", 128, 8, 1024, 8, "use-prompt")
        self.output = Knob("Output tokens", 24, 2, 64, 1, "use-output")
        knobs = (self.requests, self.prompt, self.output)
        self._on_change(self._changed, *knobs)
        self.table = w.HTML()
        self.figure = live_figure(gauges([], simulated=True))
        guarded(self._fail, self.start)()
        self.widget = w.VBox(
            [
                self.where,
                *(knob.widget for knob in knobs),
                w.HBox([self.go, self.halt]),
                self.status,
                *boxed(self.figure),
                self.table,
            ]
        )
        self.widget.add_class("llmlab-use-panel")

    # -- running ---------------------------------------------------------------------------

    def _size(self) -> Size:
        return self.requests.value, self.prompt.value, self.output.value

    def run(
        self, requests: int, prompt: int, output: int, *, real: bool = False
    ) -> list[PhaseSummary]:
        """One run in this thread, shown in the panel; shares by phase over all its steps."""
        size = (requests, prompt, output)
        for knob, value in zip((self.requests, self.prompt, self.output), size, strict=True):
            knob.tell(value)
        if self.model is not None:
            self.tell(real)
        self._show(self._real(size, threading.Event()) if real else self._simulate(size))
        return self.phases

    def _offer(self) -> str:
        return "Run serves these requests on this machine, for real."

    def _simulated(self, size: Size) -> None:
        self._show(self._simulate(size))

    def _for_real(self, size: Size, stop: threading.Event) -> Trace:
        return self._real(size, stop)

    def _ended(self, result: Trace, size: Size, stopped: bool) -> None:
        self._show(result)
        if stopped:
            self._say("stop", "Stopped; the gauges show the steps until then.")

    def _simulate(self, size: Size) -> Trace:
        from llmlab.sim.load import Arrival
        from llmlab.sim.simulate import simulate

        requests, prompt, output = size
        load = [Arrival(0, prompt, output)] * requests
        return simulate(load, self.simulated_model, self.device, roomy(*size, MOST_TOKENS))

    def _real(self, size: Size, stop: threading.Event) -> Trace:
        """The real run, drawn while it runs."""
        from llmlab.engine import Engine

        if self.model is None:
            raise ValueError("model = None: give UtilizationPanel a model to run on this machine")
        self._against(simulated=False)  # its error, if the machine was not measured, comes first
        requests, prompt, output = size
        engine = Engine(self.model, roomy(*size, MOST_TOKENS))
        with painting(lambda: self._paint(taken(engine.trace)), stop):
            drive(engine, [output] * requests, prompt, stop)
        return engine.trace

    def _paint(self, trace: Trace) -> None:
        if trace.steps:
            self._draw(trace, since=trace.steps[-1].t_end - WINDOW_NS)
            done = len(trace.steps)
            self._say("busy", f"Running for real, step {done}; the gauges show the last second.")

    # -- drawing ---------------------------------------------------------------------------

    def _against(self, simulated: bool) -> tuple[CostModel, Hardware, str]:
        """What counts the work, what 100 % is, and the dtype of the weights."""
        from llmlab.perf.machine import machine_hardware
        from llmlab.perf.models import load_model_config

        if simulated:
            shape = load_model_config(self.simulated_model)
            return CostModel(shape, Precision("bf16", "bf16")), self.device, "bf16"
        from llmlab.perf.calibrate import cost_model

        cost = cost_model(self.model)
        self.measured = self.measured or machine_hardware()
        return cost, self.measured, cost.precision.weights

    def _draw(self, trace: Trace, since: int = 0) -> None:
        self.simulated = trace.simulated
        cost, ceilings, dtype = self._against(trace.simulated)
        self.phases = by_phase(trace, cost, ceilings, since)
        where = f"{self.simulated_model}, simulated" if trace.simulated else "measured here"
        rows = gauges_rows(self.phases)
        self.table.value = (
            table_html(f"The same as a table ({where})", GAUGES_HEAD, rows)
            + f'<p style="line-height:1.4">{escape(ceilings_text(ceilings, dtype))}.</p>'
        )
        with self.figure.batch_update():
            update_gauges(self.figure, self.phases, trace.simulated)

    def _show(self, trace: Trace) -> None:
        self._draw(trace)
        self._say("ok", self.sentence())

    def caption(self) -> str:
        """What the table is of, and what its 100 % is."""
        _, ceilings, dtype = self._against(self.simulated)
        where = f"{self.simulated_model}, simulated" if self.simulated else "measured here"
        return f"Shares of the ceilings ({where}). {ceilings_text(ceilings, dtype)}."

    def sentence(self) -> str:
        """What the gauges say, in words."""
        return f"{origin(self.simulated)}, all steps. {gauges_summary(self.phases)}."

    def shown(self) -> Shown:
        rows, caption = gauges_rows(self.phases), f"{self.sentence()} {self.caption()}"
        return shown_table(caption, GAUGES_HEAD, rows, self.widget, self.figure)

"""Move batch, context, prompt, model and device; one step's place under the roof follows."""

from __future__ import annotations

from dataclasses import dataclass

from llmlab.perf.cost import CostModel, Precision, StepShape, step_shape
from llmlab.perf.hardware import Hardware, hardware_catalog, load_hardware
from llmlab.perf.models import load_model_config, models_catalog
from llmlab.perf.roofline import Utilization, utilization
from llmlab.sim.step_time import StepTime, default_constants
from llmlab.viz.figures.roofline import Point, roof_words, roofline, update_roofline
from llmlab.viz.panels.controls import Knob, menu_of
from llmlab.viz.panels.panel import Panel
from llmlab.viz.show import Shown, boxed, live_figure, shown_table, table_html
from llmlab.viz.widgets import toolkit

DTYPE = "bf16"
HEAD = ["step", "time (simulated)", "compute", "bandwidth", "FLOP/B", "nearer roof"]


@dataclass(frozen=True)
class Place:
    """One simulated step: where it lies and how long it takes."""

    label: str
    phase: str
    ms: float
    achieved: Utilization

    @property
    def point(self) -> Point:
        return Point.of(self.label, self.phase, self.achieved)

    def row(self) -> list[str]:
        """Under `HEAD`."""
        a = self.achieved
        return [
            self.label,
            f"{self.ms:.2f} ms",
            f"{100 * a.compute_share:.0f} %",
            f"{100 * a.bandwidth_share:.0f} %",
            f"{a.intensity:.1f}",
            a.near,
        ]


class RooflinePanel(Panel):
    """A simulated device; `place(...)` gives the same figures without a widget."""

    def __init__(self, model: str = "llama-3.1-8b", hardware: str = "h100-sxm") -> None:
        w = toolkit()

        self.model = menu_of("Model", "model", list(models_catalog().entries), model)
        devices = list(hardware_catalog().entries)
        self.device = menu_of("Device (simulated)", "hardware", devices, hardware)
        self.model.add_class("llmlab-roofline-model")
        self.device.add_class("llmlab-roofline-device")
        self.batch = Knob("Decode batch", 16, 1, 256, 1, "roofline-batch")
        self.context = Knob("Context tokens", 1024, 16, 8192, 16, "roofline-context")
        self.prompt = Knob("Prompt tokens", 512, 16, 8192, 16, "roofline-prompt")
        self.status = w.HTML()
        self.table = w.HTML()
        points = [p.point for p in self.places()]
        self.figure = live_figure(roofline(self._hardware(), DTYPE, points, simulated=True))
        self._on_change(self._draw, self.batch, self.context, self.prompt, self.model, self.device)
        self.widget = w.VBox(
            [
                self.model,
                self.device,
                self.batch.widget,
                self.context.widget,
                self.prompt.widget,
                self.status,
                *boxed(self.figure),
                self.table,
            ]
        )
        self.widget.add_class("llmlab-roofline-panel")
        self._draw()

    def _hardware(self) -> Hardware:
        return load_hardware(self.device.value)

    def places(self) -> list[Place]:
        """The decode step and the prefill step of the knobs' values."""
        batch, context, prompt = self.batch.value, self.context.value, self.prompt.value
        decode = step_shape([(1, context, True)] * batch)
        prefill = step_shape([(prompt, 0, True)])
        return [
            self.place(f"decode, batch {batch}, context {context}", "decode", decode),
            self.place(f"prefill, {prompt} tokens", "prefill", prefill),
        ]

    def place(self, label: str, phase: str, shape: StepShape) -> Place:
        """Where a step of this shape lies, with the step time of the simulator."""
        hardware = self._hardware()
        cost = CostModel(load_model_config(self.model.value), Precision(DTYPE, DTYPE))
        seconds = StepTime(cost, hardware, default_constants(hardware.name)).seconds(shape)
        return Place(label, phase, seconds * 1e3, utilization(shape, seconds, cost, hardware))

    def _draw(self) -> None:
        places = self.places()
        rows = [p.row() for p in places]
        self.table.value = table_html("The same as a table (simulated)", HEAD, rows)
        self._say("info", self.sentence(places))
        with self.figure.batch_update():
            points = [p.point for p in places]
            update_roofline(self.figure, self._hardware(), DTYPE, points, simulated=True)

    def sentence(self, places: list[Place]) -> str:
        """What the picture says, in words."""
        parts = [f"{p.label}: {p.ms:.2f} ms, near {roof_words(p.achieved.near)}" for p in places]
        return "Simulated: " + "; ".join(parts) + "."

    def shown(self) -> Shown:
        places = self.places()
        rows = [p.row() for p in places]
        return shown_table(self.sentence(places), HEAD, rows, self.widget, self.figure)

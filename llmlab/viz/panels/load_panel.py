"""Users from 1 to 64 on a simulated device: the numbers, the KV pool, and a safe concurrency."""

from __future__ import annotations

from typing import Any

from llmlab.perf.hardware import hardware_catalog
from llmlab.perf.models import models_catalog
from llmlab.viz.figures.load_sweep import (
    SWEEP_HEAD,
    Loaded,
    load_sweep,
    loaded,
    safe_users,
    sweep_rows,
    update_sweep,
)
from llmlab.viz.panels.controls import Knob, guarded, status_html
from llmlab.viz.show import Shown, boxed, live_figure, table_html, table_text
from llmlab.viz.widgets import toolkit

USERS = (1, 2, 4, 8, 16, 32, 64)
REQUESTS_PER_USER = 2


class LoadPanel:
    """A closed loop of users on the simulator; `sweep()` gives the runs without a widget."""

    def __init__(
        self,
        model: str = "qwen3-30b-a3b",
        hardware: str = "h100-sxm",
        users: tuple[int, ...] = USERS,
    ) -> None:
        w = toolkit()

        self.users = users
        self._runs: list[Loaded] = []
        style = {"description_width": "150px"}
        models, devices = list(models_catalog().entries), list(hardware_catalog().entries)
        self.model = w.Dropdown(options=models, value=model, description="Model", style=style)
        self.device = w.Dropdown(
            options=devices, value=hardware, description="Device (simulated)", style=style
        )
        self.model.add_class("llmlab-load-model")
        self.prompt = Knob("Prompt tokens", 1024, 16, 8192, 16, "load-prompt")
        self.output = Knob("Output tokens", 128, 8, 512, 8, "load-output")
        self.ttft = Knob("TTFT limit ms", 1000, 50, 5000, 50, "load-ttft")
        self.tpot = Knob("TPOT limit ms", 20, 1, 200, 1, "load-tpot")
        self.status, self.table = w.HTML(), w.HTML()
        self.figure = live_figure(load_sweep([]))
        for knob in (self.prompt, self.output):
            knob.on_change(guarded(self._fail, self._run))
        for knob in (self.ttft, self.tpot):
            knob.on_change(guarded(self._fail, self._draw))
        for menu in (self.model, self.device):
            menu.observe(guarded(self._fail, lambda _: self._run()), names="value")
        self.widget = w.VBox(
            [
                self.model,
                self.device,
                *(k.widget for k in (self.prompt, self.output, self.ttft, self.tpot)),
                self.status,
                *boxed(self.figure),
                self.table,
            ]
        )
        self.widget.add_class("llmlab-load-panel")
        guarded(self._fail, self._run)()

    def sweep(self) -> list[Loaded]:
        """One simulated run a number of users, with the panel's model, device and lengths."""
        from llmlab.sim.load import ClosedLoop
        from llmlab.sim.simulate import simulate

        runs = []
        for users in self.users:
            load = ClosedLoop(
                users, users * REQUESTS_PER_USER, self.prompt.value, self.output.value
            )
            trace = simulate(load, self.model.value, self.device.value)
            runs.append(loaded(trace, users))
        return runs

    def _run(self) -> None:
        self._runs = self.sweep()
        self._draw()

    def _draw(self) -> None:
        self.table.value = table_html(
            "The same as a table (simulated)", SWEEP_HEAD, sweep_rows(self._runs)
        )
        self.status.value = status_html("info", self.sentence())
        with self.figure.batch_update():
            update_sweep(self.figure, self._runs, float(self.tpot.value))

    def sentence(self) -> str:
        """The verdict in words, against the panel's two limits."""
        best = safe_users(self._runs, self.ttft.value, self.tpot.value)
        limits = f"TTFT {self.ttft.value} ms and TPOT {self.tpot.value} ms at the median"
        if best is None:
            return f"Simulated. Not even {min(self.users)} user meets {limits}."
        more = "" if best < max(self.users) else " (the most that was tried)"
        return f"Simulated. Up to {best} users meet {limits}{more}."

    def _fail(self, text: str) -> None:
        self._runs = []
        self.table.value = ""
        self.status.value = status_html("error", text)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        rows = sweep_rows(self._runs)
        return Shown(
            self.widget,
            lambda: table_html(self.sentence(), SWEEP_HEAD, rows),
            lambda: table_text(self.sentence(), SWEEP_HEAD, rows),
            self.figure,
        )._repr_mimebundle_(**kwargs)

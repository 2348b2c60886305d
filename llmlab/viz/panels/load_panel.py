"""More and more users, simulated or real: the numbers, the KV pool, and a safe concurrency."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from llmlab.config import EngineConfig
from llmlab.measure.workload import Workload, parse_workload
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
from llmlab.viz.palette import origin
from llmlab.viz.panels.controls import SIMULATED, Knob, guarded, menu_of
from llmlab.viz.panels.two_clocks import TwoClocks
from llmlab.viz.show import Shown, boxed, live_figure, shown_table, table_html
from llmlab.viz.widgets import toolkit

if TYPE_CHECKING:
    from llmlab.engine.model import Model

USERS = (1, 2, 4, 8, 16, 32, 64)
REAL_USERS = (1, 2, 4, 8)
REQUESTS_PER_USER = 2


def closed_loop(users: int, prompt_tokens: int, output_tokens: int) -> Workload:
    """Users who send a request, wait for all of its answer, and send the next."""
    return parse_workload(
        {
            "name": f"{users} users",
            "seed": 0,
            "classes": [
                {"name": "chat", "prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
            ],
            "arrivals": {"kind": "closed", "concurrency": users},
            "stop": {"num_prompts": REQUESTS_PER_USER * users},
        }
    )


class LoadPanel(TwoClocks):
    """A closed loop of users; `sweep()` gives the simulated runs without a widget, `sweep_real()`
    those on this machine.

    real_model: of the real runs; without one only the simulated GPU is offered.
    """

    def __init__(
        self,
        model: str = "qwen3-30b-a3b",
        hardware: str = "h100-sxm",
        users: tuple[int, ...] = USERS,
        *,
        real_model: Model | None = None,
        real_users: tuple[int, ...] = REAL_USERS,
    ) -> None:
        super().__init__("load", real_model is not None)
        w = toolkit()

        self.users, self.real_model, self.real_users = users, real_model, real_users
        self._runs: list[Loaded] = []
        models, devices = list(models_catalog().entries), list(hardware_catalog().entries)
        self.model = menu_of("Model", "model", models, model)
        self.device = menu_of("Device (simulated)", "hardware", devices, hardware)
        self.model.add_class("llmlab-load-model")
        self.prompt = Knob("Prompt tokens", 1024, 16, 8192, 16, "load-prompt")
        self.output = Knob("Output tokens", 64, 8, 512, 8, "load-output")
        self.ttft = Knob("TTFT limit ms", 1000, 50, 5000, 50, "load-ttft")
        self.tpot = Knob("TPOT limit ms", 20, 1, 200, 1, "load-tpot")
        self.table = w.HTML()
        self.figure = live_figure(load_sweep([]))
        self._on_change(self._changed, self.prompt, self.output, self.model, self.device)
        self._on_change(self._draw, self.ttft, self.tpot)
        guarded(self._fail, self._changed)()
        self.widget = w.VBox(
            [
                self.where,
                self.model,
                self.device,
                *(k.widget for k in (self.prompt, self.output, self.ttft, self.tpot)),
                w.HBox([self.go, self.halt]),
                self.status,
                *boxed(self.figure),
                self.table,
            ]
        )
        self.widget.add_class("llmlab-load-panel")

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

    def sweep_real(self, stop: threading.Event | None = None) -> list[Loaded]:
        """The same on this machine, for real; each number of users is drawn as it ends."""
        from llmlab.engine import Engine
        from llmlab.measure.run import run_workload

        if self.real_model is None:
            raise ValueError("real_model = None: give LoadPanel a model to run on this machine")
        prompt, output = self.prompt.value, self.output.value
        config = EngineConfig(max_num_batched_tokens=256, max_model_len=prompt + output)
        stop = stop or threading.Event()
        runs: list[Loaded] = []
        for users in self.real_users:
            self._say("busy", f"Running {users} users on this machine, for real.")
            load = closed_loop(users, prompt, output)
            trace = run_workload(Engine(self.real_model, config), load, stop=stop)
            if stop.is_set():
                break
            runs.append(loaded(trace, users))
            self._runs = list(runs)
            self._draw()
        return runs

    def _changed(self) -> None:
        # What is simulated can be chosen; what runs here is what it is.
        self.model.disabled = self.device.disabled = self.where.value != SIMULATED
        super()._changed()

    def _offer(self) -> str:
        sent = REQUESTS_PER_USER * sum(self.real_users)
        return f"Run sends {sent} requests of this size on this machine, for real."

    def _size(self) -> tuple[int, int]:
        return self.prompt.value, self.output.value

    def _simulated(self, size: tuple[int, int]) -> None:
        self._runs = self.sweep()
        self._draw()
        self._say("info", self.sentence())

    def _for_real(self, size: tuple[int, int], stop: threading.Event) -> list[Loaded]:
        return self.sweep_real(stop)

    def _ended(self, result: list[Loaded], size: tuple[int, int], stopped: bool) -> None:
        if stopped:
            self._say("stop", "Stopped; the figure shows the runs that ended.")
        else:
            self._say("ok", self.sentence())

    @property
    def simulated(self) -> bool:
        return all(run.simulated for run in self._runs)

    def _draw(self) -> None:
        where = "simulated" if self.simulated else "measured on this machine"
        self.table.value = table_html(
            f"The same as a table ({where})", SWEEP_HEAD, sweep_rows(self._runs)
        )
        if not self.live.busy:
            self._say("info", self.sentence())
        with self.figure.batch_update():
            update_sweep(self.figure, self._runs, float(self.tpot.value))

    def sentence(self) -> str:
        """The verdict in words, against the panel's two limits."""
        best = safe_users(self._runs, self.ttft.value, self.tpot.value)
        limits = f"TTFT {self.ttft.value} ms and TPOT {self.tpot.value} ms at the median"
        where = origin(self.simulated)
        tried = [run.users for run in self._runs]
        if best is None:
            return f"{where}. Not even {min(tried, default=1)} user meets {limits}."
        more = "" if best < max(tried) else " (the most that was tried)"
        return f"{where}. Up to {best} users meet {limits}{more}."

    def _fail(self, text: str) -> None:
        self._runs = []
        self.table.value = ""
        super()._fail(text)

    def shown(self) -> Shown:
        said, rows = self.sentence(), sweep_rows(self._runs)
        return shown_table(said, SWEEP_HEAD, rows, self.widget, self.figure)

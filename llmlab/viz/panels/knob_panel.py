"""Turn prompt length and output length; each settled change is one real request."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from llmlab.config import require_int
from llmlab.sched.request import SamplingParams
from llmlab.viz.figures.runs_compared import (
    RUNS_HEAD,
    Run,
    runs_compared,
    runs_rows,
    runs_summary,
    update_runs,
)
from llmlab.viz.live import LiveRun
from llmlab.viz.panels.controls import Knob, button, status_html
from llmlab.viz.panels.panel import Panel
from llmlab.viz.show import Shown, boxed, live_figure, shown_table, table_html
from llmlab.viz.widgets import toolkit

if TYPE_CHECKING:
    from llmlab.engine import Engine

KEPT = 8
TEXT = "The quick brown fox jumps over the lazy dog while the server counts its tokens. "


class KnobPanel(Panel):
    """Runs requests of a chosen size and lines them up. `run(p, n)` does one without a widget."""

    def __init__(
        self, engine: Engine, prompt_tokens: int = 64, output_tokens: int = 16, most: int = 512
    ) -> None:
        w = toolkit()

        self.engine = engine
        self.live = LiveRun()
        self.runs: list[Run] = []
        self.prompt = Knob("Prompt tokens", prompt_tokens, 8, most, 8, "prompt-tokens")
        self.output = Knob("Output tokens", output_tokens, 1, 64, 1, "output-tokens")
        self._on_change(self.start, self.prompt, self.output)
        self.halt = button("Stop", "knob-stop")
        self._on_click(self.live.cancel, self.halt)
        self.again = button("Run", "knob-run", "primary")
        self._on_click(self.start, self.again)
        self.status = w.HTML(
            status_html("info", "Move one knob: a real request of that size runs.")
        )
        self.figure = live_figure(runs_compared())
        update_runs(self.figure, [])
        self.table = w.HTML("")
        self.widget = w.VBox(
            [
                self.prompt.widget,
                self.output.widget,
                w.HBox([self.again, self.halt]),
                self.status,
                *boxed(self.figure),
                self.table,
            ]
        )
        self.widget.add_class("llmlab-knob-panel")

    # -- running ---------------------------------------------------------------------------

    def start(self) -> None:
        """Run the knobs' values; while one runs, the newest change waits its turn."""
        size = (self.prompt.value, self.output.value)
        self.live.start(lambda stop: self._job(*size, stop), queue=True)

    def run(self, prompt_tokens: int, output_tokens: int) -> Run | None:
        """One request in this thread; None if it was stopped. The knobs show its size."""
        require_int("KnobPanel", "prompt_tokens", prompt_tokens, 1)
        require_int("KnobPanel", "output_tokens", output_tokens, 1)
        self.prompt.tell(prompt_tokens)
        self.output.tell(output_tokens)
        return self._one(prompt_tokens, output_tokens, threading.Event())

    def _job(self, prompt_tokens: int, output_tokens: int, stop: threading.Event) -> None:
        try:
            self._one(prompt_tokens, output_tokens, stop)
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")

    def _one(self, prompt_tokens: int, output_tokens: int, stop: threading.Event) -> Run | None:
        from llmlab.measure.per_request import request_metrics

        self._say("busy", f"Running {prompt_tokens} in, {output_tokens} out, for real.")
        engine = self.engine
        piece = engine.tokenizer.encode(TEXT)
        ids = (piece * (prompt_tokens // len(piece) + 1))[:prompt_tokens]
        params = SamplingParams(max_tokens=output_tokens, ignore_eos=True)
        rid, ended = f"knobs-{engine.clock()}", False
        # A stream, not steps: a cell or another panel may be using the same engine meanwhile.
        for out in engine.stream(ids, params, stop=stop, request_id=rid):
            ended = out.finish_reason is not None
        if not ended:
            self._say("stop", "Stopped; its KV blocks are free again.")
            return None
        m = request_metrics(engine.trace.requests[rid])
        if m.ttft is None or m.e2e is None:
            raise RuntimeError("the run ended without a token")
        run = Run(prompt_tokens, output_tokens, m.ttft, m.tpot, m.e2e)
        self.runs = [*self.runs, run][-KEPT:]
        self._draw()
        self._say("ok", runs_summary(self.runs))
        return run

    # -- drawing ---------------------------------------------------------------------------

    def _draw(self) -> None:
        self.table.value = table_html("The same runs as a table", RUNS_HEAD, runs_rows(self.runs))
        with self.figure.batch_update():
            update_runs(self.figure, self.runs)

    def shown(self) -> Shown:
        said, rows = runs_summary(self.runs), runs_rows(self.runs)
        return shown_table(said, RUNS_HEAD, rows, self.widget, self.figure)

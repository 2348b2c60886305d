"""Turn the token budget, the mix and the load; chats' gaps and documents' waits answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from llmlab.config import EngineConfig
from llmlab.measure.workload import Workload, load_workload
from llmlab.sched.chunked import Chunked
from llmlab.sched.continuous import Continuous
from llmlab.trace import Trace
from llmlab.viz.figures.itl_strip import STRIP_HEAD, itl_strip, strip_rows, update_strip
from llmlab.viz.figures.step_gantt import step_gantt, update_gantt
from llmlab.viz.palette import origin
from llmlab.viz.panels.controls import Knob, menu_of
from llmlab.viz.panels.two_clocks import TwoClocks
from llmlab.viz.show import Shown, boxed, live_figure, shown_table, table_html
from llmlab.viz.trials import (
    CHAT_GAP,
    DOCUMENT_TTFT,
    Trial,
    around_longest_gap,
    limits_by_figure,
    trial_of,
    verdict_head,
    verdict_rows,
)
from llmlab.viz.widgets import toolkit

if TYPE_CHECKING:
    from llmlab.engine.model import Model

CHUNKED, WHOLE = "chunked", "whole prompts"
CLASSES = ("chat", "document")
REQUESTS = 60  # of a simulated trial: a knob's move has to answer within 200 ms
KEPT = 5
Size = tuple[str, int, int, int]


def mixed(name: str, documents: int, **changes: Any) -> Workload:
    """A stored workload of chats and documents with another share of documents, in percent."""
    base = load_workload(name)
    shares = {"chat": 100 - documents, "document": documents}
    classes = [c.model_copy(update={"share": shares[c.name]}) for c in base.classes]
    return base.with_(classes=[c.model_dump() for c in classes if c.share > 0], **changes)


class ChunkPanel(TwoClocks):
    """Trials line up in a verdict table; `run(...)` does one without a widget.

    model: of the real runs (a scaled mix, four clients in a closed loop, so the arrival rate does
    not apply there); without one only the simulated GPU is offered.
    """

    def __init__(
        self,
        model: Model | None = None,
        *,
        simulated_model: str = "llama-3.1-8b",
        hardware: str = "h100-sxm",
        real_requests: int = 8,
    ) -> None:
        super().__init__("chunk", model is not None)
        w = toolkit()

        self.model, self.simulated_model, self.hardware = model, simulated_model, hardware
        self.real_requests = real_requests
        self.trials: list[Trial] = []
        self.policy = menu_of("Prompts are", "policy", (CHUNKED, WHOLE), CHUNKED)
        self.policy.add_class("llmlab-chunk-policy")
        self.budget = Knob("Max batched tokens", 2048, 64, 8192, 64, "chunk-budget")
        self.documents = Knob("Documents, %", 50, 0, 100, 10, "chunk-documents")
        self.rate = Knob("Requests per second", 4, 1, 8, 1, "chunk-rate")
        self._on_change(self._changed, self.budget, self.documents, self.rate, self.policy)
        self.verdicts, self.gaps = w.HTML(), w.HTML()
        self.trace = self._simulate(self._size())
        near = around_longest_gap(self.trace)
        self.gantt = live_figure(step_gantt(near, self.budget.value))
        self.strip = live_figure(itl_strip(self.trace, self._gap_limit(), CLASSES))
        self.widget = w.VBox(
            [
                self.where,
                self.policy,
                self.budget.widget,
                self.documents.widget,
                self.rate.widget,
                w.HBox([self.go, self.halt]),
                self.status,
                self.verdicts,
                *boxed(self.gantt, self.strip),
                self.gaps,
            ]
        )
        self.widget.add_class("llmlab-chunk-panel")
        self._show(self.trace, self._size())

    # -- running ---------------------------------------------------------------------------

    def _size(self) -> Size:
        policy = str(self.policy.value)
        return policy, self.budget.value, self.documents.value, self.rate.value

    def run(
        self,
        max_num_batched_tokens: int,
        documents: int = 50,
        rate: int = 4,
        *,
        policy: str = CHUNKED,
        real: bool = False,
    ) -> Trial:
        """One trial in this thread. The panel stays as its knobs say."""
        size = (policy, max_num_batched_tokens, documents, rate)
        trace = self._real(size, threading.Event()) if real else self._simulate(size)
        return trial_of(trace, self._name(size, trace))

    def _offer(self) -> str:
        return "Run serves the scaled mix on this machine, for real."

    def _simulated(self, size: Size) -> None:
        self._show(self._simulate(size), size)

    def _for_real(self, size: Size, stop: threading.Event) -> Trace:
        def progress(done: int, of: int) -> None:
            if not stop.is_set():
                self._progress(done, of)

        return self._real(size, stop, progress)

    def _ended(self, result: Trace, size: Size, stopped: bool) -> None:
        if stopped:
            self._say("stop", "Stopped; that trial is not counted.")
        else:
            self._show(result, size)

    def _simulate(self, size: Size) -> Trace:
        from llmlab.sim.simulate import simulate

        policy, budget, documents, rate = size
        load = mixed(
            "chat_and_documents",
            documents,
            arrivals={"kind": "poisson", "request_rate": rate},
            stop={"num_prompts": REQUESTS},
        )
        whole = policy == WHOLE
        return simulate(
            load,
            self.simulated_model,
            self.hardware,
            policy="continuous" if whole else "chunked",
            max_num_batched_tokens=8448 if whole else budget,  # prompts that are not cut must fit
            max_model_len=8448,
        )

    def _progress(self, done: int, of: int) -> None:
        self._say("busy", f"Running on this machine, for real: {done} of {of} requests are over.")

    def _real(
        self,
        size: Size,
        stop: threading.Event,
        progress: Callable[[int, int], None] | None = None,
    ) -> Trace:
        from llmlab.engine import Engine
        from llmlab.measure.run import run_workload

        if self.model is None:
            raise ValueError("model = None: give ChunkPanel a model to run on this machine")
        policy, budget, documents, _ = size
        whole = policy == WHOLE
        config = EngineConfig(
            max_num_batched_tokens=1088 if whole else budget, max_num_seqs=8, max_model_len=1088
        )
        engine = Engine(self.model, config, Continuous if whole else Chunked)
        load = mixed("chat_and_documents_cpu", documents, stop={"num_prompts": self.real_requests})
        if progress is not None:
            progress(0, self.real_requests)
        return run_workload(engine, load, stop=stop, progress=progress)

    # -- drawing ---------------------------------------------------------------------------

    def _name(self, size: Size, trace: Trace) -> str:
        policy, budget, documents, rate = size
        cut = f"{CHUNKED} {budget}" if policy == CHUNKED else policy
        load = f"{rate}/s, simulated" if trace.simulated else "4 clients, real, scaled"
        return f"{cut}; {documents} % documents; {load}"

    def _limits(self, trace: Trace) -> dict[str, float]:
        """Those of the curriculum's trial. Milliseconds do not scale: a real run here has none."""
        name = "chat_and_documents" if trace.simulated else "chat_and_documents_cpu"
        return limits_by_figure(load_workload(name).limits)

    def _gap_limit(self) -> float | None:
        return self._limits(self.trace).get(CHAT_GAP)

    def _show(self, trace: Trace, size: Size) -> None:
        self.trace = trace
        trial = trial_of(trace, self._name(size, trace))
        same_clock = [t for t in self.trials if t.simulated == trial.simulated]
        self.trials = [*[t for t in same_clock if t.name != trial.name], trial][-KEPT:]
        limits = self._limits(trace)
        caption = "Your latest trials; the newest is the last"
        rows = verdict_rows(self.trials, limits)
        self.verdicts.value = table_html(caption, verdict_head(limits), rows)
        self.gaps.value = table_html("The gaps as a table", STRIP_HEAD, strip_rows(trace))
        budget = size[1] if size[0] == CHUNKED else None
        with self.gantt.batch_update():
            update_gantt(self.gantt, around_longest_gap(trace), budget)
        with self.strip.batch_update():
            update_strip(self.strip, trace, self._gap_limit())
        self._say("ok", self.sentence(trial))

    def sentence(self, trial: Trial) -> str:
        """What the newest trial says, in words."""
        gap, wait = trial.figures[CHAT_GAP], trial.figures[DOCUMENT_TTFT]
        parts = []
        if gap is not None and trial.gap_p99 is not None:
            parts.append(f"chat gaps p95 {gap:.1f} ms, p99 {trial.gap_p99:.1f} ms")
        if wait is not None:
            parts.append(f"document TTFT p95 {wait:,.0f} ms")
        how = f"{origin(trial.simulated)}, {trial.name.split(';')[0]}"
        return f"{how}: {'; '.join(parts) or 'nothing ended'}."

    def shown(self) -> Shown:
        limits = self._limits(self.trace)
        head, rows = verdict_head(limits), verdict_rows(self.trials, limits)
        return shown_table(self.sentence(self.trials[-1]), head, rows, self.widget, self.strip)

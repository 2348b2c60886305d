"""Step a real scheduler by hand and watch KV blocks fill, share and free. No model runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmlab.config import EngineConfig
from llmlab.sched import Chunked, Request, SamplingParams, StepPlan
from llmlab.viz.figures.block_map import (
    BLOCK_HEAD,
    LETTERS,
    block_map,
    block_rows,
    block_summary,
    letters_of,
    snapshot,
    text_map,
    update_block_map,
)
from llmlab.viz.panels.controls import Knob, button, wrapping
from llmlab.viz.panels.panel import Panel
from llmlab.viz.show import Shown, boxed, live_figure, table_html, table_text
from llmlab.viz.widgets import toolkit

MOST_REQUESTS = len(LETTERS)


class BlockPanel(Panel):
    """A `Chunked` scheduler whose tokens are placeholders; its blocks are as in the engine.

    `add`, `step`, `abort` and `restart` do without a widget what the buttons do, and return what
    happened as a sentence. A change of pool or prefix cache starts afresh.
    """

    def __init__(self, num_blocks: int = 24, block_size: int = 4, prefix_caching: bool = False):
        self.block_size = block_size
        self._build(num_blocks, prefix_caching)
        self.restart(num_blocks, prefix_caching)

    # -- without widgets -------------------------------------------------------------------

    def restart(self, num_blocks: int | None = None, prefix_caching: bool | None = None) -> str:
        """A fresh scheduler and an empty pool."""
        if num_blocks is not None:
            self.pool.box.value = num_blocks
        if prefix_caching is not None:
            self.prefix.value = prefix_caching
        config = EngineConfig(
            max_num_batched_tokens=16,
            block_size=self.block_size,
            num_blocks=self.pool.value,
            enable_prefix_caching=bool(self.prefix.value),
        )
        self.scheduler = Chunked(config)
        self.steps = self.tokens_computed = self._added = 0
        word = "on" if config.enable_prefix_caching else "off"
        return self._show(
            f"An empty pool of {config.num_blocks} blocks, prefix cache {word}. Add a request."
        )

    def add(self, prompt: int, output: int, common: int = 0) -> str:
        """Queue a request; its first `common` tokens are the same in all requests."""
        if self._added == MOST_REQUESTS:
            raise ValueError(f"{MOST_REQUESTS} requests, one a letter, are the most: start again")
        letter = LETTERS[self._added]
        own = 1000 * (self._added + 1)
        tokens = [i if i < common else own + i for i in range(prompt)]
        params = SamplingParams(max_tokens=output, ignore_eos=True)
        self.scheduler.add(Request(letter, tokens, params))
        self._added += 1
        return self._show(f"{letter} waits: {prompt} prompt tokens, {output} output tokens.")

    def step(self, count: int = 1) -> str:
        """Plan and commit up to `count` steps; says what the last of them did."""
        said = "Nothing to do: add a request."
        for _ in range(count):
            if not self.scheduler.has_work:
                break
            plan = self.scheduler.plan()
            given = [(request.request_id, n) for request, n in plan.scheduled]
            # Where a model would choose, each request gets a token nobody else has.
            tokens = [10**6 * (r.arrival + 1) + r.num_tokens for r in plan.sampled]
            ended = self.scheduler.commit(plan, tokens)
            self.steps += 1
            self.tokens_computed += plan.num_tokens
            said = self._sentence(plan, given, ended)
        return self._show(said)

    def abort(self, request_id: str) -> str:
        """End a request wherever it is; its blocks are free at once."""
        before = snapshot(self.scheduler).held
        if not self.scheduler.finish(request_id, "abort"):
            raise ValueError(f"no request {request_id!r} is waiting or running")
        freed = before - snapshot(self.scheduler).held
        return self._show(f"{request_id} aborted: {freed} blocks came free.")

    def _sentence(self, plan: StepPlan, given: list[tuple[str, int]], ended: list[Request]) -> str:
        parts = [f"{letter} {n}" for letter, n in given]
        said = [f"Step {self.steps} computed " + (", ".join(parts) or "nothing") + "."]
        if plan.cache_hit_tokens:
            said.append(f"{plan.cache_hit_tokens} tokens were found in the cache.")
        for request in plan.preempted:
            said.append(f"{request.request_id} preempted: no block was free, it starts over.")
        for request in ended:
            said.append(f"{request.request_id} finished, its blocks are free.")
        return " ".join(said)

    # -- widgets ---------------------------------------------------------------------------

    def _build(self, num_blocks: int, prefix_caching: bool) -> None:
        w = toolkit()

        self.pool = Knob("Blocks in the pool", num_blocks, 6, 60, 1, "block-pool")
        self.prefix = w.Checkbox(prefix_caching, description="Prefix cache", indent=False)
        self.prefix.add_class("llmlab-block-prefix")
        self.prompt = Knob("Prompt tokens", 14, 1, 64, 1, "block-prompt")
        self.output = Knob("Output tokens", 12, 1, 64, 1, "block-output")
        self.common = Knob("Common beginning", 8, 0, 64, 1, "block-common")
        self._on_change(self.restart, self.pool, self.prefix)
        self.who = w.Dropdown(options=[], description="Abort which", disabled=True)
        self.who.style = {"description_width": "90px"}
        self.who.layout.width = "180px"
        self.who.add_class("llmlab-block-who")
        self.status, self.table = w.HTML(), w.HTML()
        self.figure: Any | None = None
        self._slot = w.VBox([])
        self.widget = w.VBox(
            [
                self.pool.widget,
                self.prefix,
                self.prompt.widget,
                self.output.widget,
                self.common.widget,
                wrapping(*self._buttons(), self.who, self._abort_button()),
                self.status,
                self._slot,
                self.table,
            ]
        )
        self.widget.add_class("llmlab-block-panel")

    def _buttons(self) -> list[Any]:
        acts: dict[tuple[str, str, str], Callable[[], object]] = {
            ("Step", "block-step", "primary"): self.step,
            ("Add request", "block-add", ""): lambda: self.add(*self._size()),
            ("10 steps", "block-ten", ""): lambda: self.step(10),
            ("Start again", "block-restart", ""): self.restart,
        }
        made = []
        for (text, name, style), act in acts.items():
            made.append(button(text, name, style))
            made[-1].layout.width = "112px"
            self._on_click(act, made[-1])
        return made

    def _abort_button(self) -> Any:
        self.halt = button("Abort", "block-abort")
        self.halt.layout.width = "90px"
        self._on_click(lambda: self.abort(str(self.who.value)), self.halt)
        return self.halt

    def _size(self) -> tuple[int, int, int]:
        return self.prompt.value, self.output.value, min(self.common.value, self.prompt.value)

    def _show(self, said: str) -> str:
        """Bring status, figure, table and menu up to the scheduler, and hand the sentence on."""
        shot = snapshot(self.scheduler)
        alive = list(letters_of(shot))
        chosen = self.who.value
        if list(self.who.options) != alive:
            self.who.options = alive
            # An emptied menu keeps no choice when it fills again: always make one.
            self.who.value = chosen if chosen in alive else next(iter(alive), None)
        self.who.disabled = self.halt.disabled = not alive
        self._say("info", f"{said} {block_summary(shot)}.")
        self.table.value = table_html("Block tables", BLOCK_HEAD, block_rows(shot))
        if self.figure is None:
            self.figure = live_figure(block_map(shot))
            self._slot.children = boxed(self.figure)
        else:
            with self.figure.batch_update():
                update_block_map(self.figure, shot)
        return said

    def text(self) -> str:
        """Map and block tables as text."""
        shot = snapshot(self.scheduler)
        return text_map(shot) + "\n" + table_text(block_summary(shot), BLOCK_HEAD, block_rows(shot))

    def shown(self) -> Shown:
        shot = snapshot(self.scheduler)
        return Shown(
            self.widget,
            lambda: table_html(block_summary(shot), BLOCK_HEAD, block_rows(shot)),
            self.text,
            self.figure,
        )

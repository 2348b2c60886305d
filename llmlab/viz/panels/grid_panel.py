"""Turn request, context, page size and splits; the programs' way through the pool follows."""

from __future__ import annotations

from llmlab.viz.figures.grid_walk import (
    WALK_HEAD,
    update_walk,
    walk_figure,
    walk_rows,
    walk_sentence,
)
from llmlab.viz.grid_walk import LETTERS, GridWalk, grid_walk
from llmlab.viz.panels.controls import Knob
from llmlab.viz.panels.panel import Panel
from llmlab.viz.show import Shown, boxed, live_figure, table_html, table_text
from llmlab.viz.widgets import toolkit

CONTEXTS = (9, 23, 30, 17)
CAPTION = "The same as a table: every program of one head"


class GridPanel(Panel):
    """A picture, nothing runs. `walk()` gives what the knobs say without a widget."""

    def __init__(self, request: int = 1, page: int = 4, splits: int = 1) -> None:
        w = toolkit()
        self.contexts = list(CONTEXTS)
        self.request = Knob("Request (0 = A)", request, 0, len(CONTEXTS) - 1, 1, "grid-request")
        self.context = Knob("Its context", self.contexts[request], 1, 64, 1, "grid-context")
        self.page = Knob("Page (block) size", page, 2, 16, 1, "grid-page")
        self.splits = Knob("Splits of the KV", splits, 1, 4, 1, "grid-splits")
        self.status, self.table = w.HTML(), w.HTML()
        self.figure = live_figure(walk_figure(self.walk()))
        self._on_change(self._choose, self.request)
        self._on_change(self._draw, self.context, self.page, self.splits)
        knobs = [k.widget for k in (self.request, self.context, self.page, self.splits)]
        self.widget = w.VBox([*knobs, self.status, *boxed(self.figure), self.table])
        self.widget.add_class("llmlab-grid-panel")
        self._draw()

    def walk(self) -> GridWalk:
        """The grid and its way, for the knobs' values."""
        self.contexts[self.request.value] = self.context.value
        return grid_walk(self.contexts, self.page.value, self.request.value, self.splits.value)

    def _choose(self) -> None:
        """Another request is looked at: the context knob shows that one's."""
        self.context.box.value = self.contexts[self.request.value]
        self._draw()

    def _draw(self) -> None:
        walk = self.walk()
        self.table.value = table_html(CAPTION, WALK_HEAD, walk_rows(walk))
        self._say("info", walk_sentence(walk))
        with self.figure.batch_update():
            update_walk(self.figure, walk)

    def text(self) -> str:
        """The picture in words and as a table."""
        walk = self.walk()
        tables = (
            f"{LETTERS[r]}: " + " ".join(map(str, table)) for r, table in enumerate(walk.tables)
        )
        return "\n".join(
            ["Block tables", *tables, table_text(walk_sentence(walk), WALK_HEAD, walk_rows(walk))]
        )

    def shown(self) -> Shown:
        walk = self.walk()
        return Shown(
            self.widget,
            lambda: table_html(walk_sentence(walk), WALK_HEAD, walk_rows(walk)),
            self.text,
        )

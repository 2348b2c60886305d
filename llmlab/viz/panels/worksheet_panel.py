"""Worksheets as a form: each item with its input, Check, Hint and a result in words."""

from __future__ import annotations

from html import escape
from typing import Any

from llmlab.check import Result, check, current_student, hint, load_worksheet, progress
from llmlab.check.checker import last_answer
from llmlab.check.worksheet import Item, Worksheet
from llmlab.viz.palette import INK
from llmlab.viz.panels.controls import (
    LABEL,
    TEXT,
    button,
    guarded,
    prompts_shown,
    status_html,
    wrapping,
)
from llmlab.viz.panels.panel import Panel
from llmlab.viz.show import Shown
from llmlab.viz.widgets import toolkit


def slug(item_id: str) -> str:
    """Item id as a CSS class: dots are separators there."""
    return item_id.replace(".", "-")


def example_for(unit: str) -> str:
    """What a box suggests before anything is typed."""
    known = {"": "a number", "ms": "for example 12 ms", "x": "a factor, for example 1.5"}
    return known.get(unit, f"a number, in {unit}")


class _Row:
    """One item of the form."""

    def __init__(self, item: Item, changed: Any) -> None:
        w = toolkit()

        self.item = item
        self._changed = changed
        name = slug(item.id)
        prompt = item.prompt_for(current_student())
        self.prompt = w.HTML(f'<div style="{TEXT}"><b>{escape(item.id)}</b> {escape(prompt)}</div>')
        # The box is labelled with the item's id, which the prompt above carries too.
        self.box = w.Text(
            placeholder=example_for(item.unit),
            description=item.id,
            style=LABEL,
            continuous_update=False,
        )
        self.box.layout.width = "min(calc(100% - 8px), 400px)"
        self.box.add_class(f"llmlab-answer-{name}")
        go, help_ = button("Check", f"check-{name}", "primary"), button("Hint", f"hint-{name}")
        self.result = w.HTML(status_html("info", "not answered yet"))
        self.result.add_class(f"llmlab-result-{name}")
        go.on_click(guarded(self._fail, lambda _: self.check()))
        help_.on_click(guarded(self._fail, lambda _: self.hint()))
        self.widget = w.VBox([self.prompt, wrapping(self.box, go, help_), self.result])
        self.widget.layout.margin = "0 0 14px 0"
        guarded(self._fail, self._restore)()

    def _restore(self) -> None:
        """Show what was answered before: by another cell, or before the kernel was restarted."""
        if (before := last_answer(self.item.id)) is not None:
            answer, outcome = before
            self.box.value = str(answer)
            self._show(outcome)

    def check(self) -> Result:
        outcome = check(self.item.id, self.box.value)
        self._show(outcome)
        self._changed()
        return outcome

    def _show(self, outcome: Result) -> None:
        self.result.value = f'<div style="line-height:1.4">{outcome._repr_html_()}</div>'

    def hint(self) -> None:
        self.result.value = status_html("info", hint(self.item.id))

    def _fail(self, text: str) -> None:
        self.result.value = status_html("error", text)


class WorksheetPanel(Panel):
    """The worksheets called `names`, with one progress bar. Items keep their own order."""

    def __init__(self, *names: str) -> None:
        w = toolkit()

        self.worksheets: list[Worksheet] = [load_worksheet(name) for name in names]
        self.rows: list[_Row] = []
        parts: list[Any] = []
        for sheet in self.worksheets:
            intro = sheet.intro_for(current_student())
            parts.append(
                w.HTML(
                    f'<h4 style="color:{INK};margin:6px 0">{escape(sheet.title)}</h4>'
                    f'<div style="{TEXT};margin-bottom:8px">{escape(intro)}</div>'
                )
            )
            for item in sheet.items:
                row = _Row(item, self._count)
                self.rows.append(row)
                parts.append(row.widget)
        self.bar = w.IntProgress(0, min=0, max=max(1, len(self.rows)))
        self.bar.layout.width = "200px"
        self.status = w.HTML()
        self.widget = w.VBox([w.HBox([self.bar, self.status]), *parts])
        self.widget.add_class("llmlab-worksheet")
        self._count()

    def _count(self) -> None:
        right = self._solved()
        self.bar.value = right
        kind = "ok" if right == len(self.rows) else "info"
        self._say(kind, f"{right} of {len(self.rows)} items correct")

    def _solved(self) -> int:
        mine = {row.item.id for row in self.rows}
        return sum(row.item in mine and row.state == "correct" for row in progress().rows)

    def shown(self) -> Shown:
        student = current_student()
        prompts = [f"{row.item.id}  {row.item.prompt_for(student)}" for row in self.rows]
        how = 'Without widgets: check("ID", answer).'
        return prompts_shown(self.widget, prompts, how)

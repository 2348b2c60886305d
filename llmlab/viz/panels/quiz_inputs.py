"""The input of each kind of question, by labelled widgets that a keyboard reaches.

JupyterLab takes the arrow keys away from radio buttons and lists (they move between cells), so
every question with letters has a box for them too; radio buttons are for the hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from llmlab.check.present import Asked
from llmlab.check.question import (
    MatchQuestion,
    NumericQuestion,
    OrderQuestion,
    ProseQuestion,
    Question,
    SingleQuestion,
)
from llmlab.viz.panels.controls import TEXT
from llmlab.viz.panels.worksheet_panel import example_for
from llmlab.viz.widgets import toolkit

# ipywidgets cuts long labels of radio buttons and checkboxes to one line; here they wrap.
CSS = """<style>
.llmlab-quiz .widget-radio-box label, .llmlab-quiz .widget-checkbox label {
  white-space: normal; height: auto; line-height: 1.4; padding: 2px 0; max-width: 740px;
  overflow: visible; overflow-wrap: anywhere; }
.llmlab-quiz .widget-radio-box label { display: flex; align-items: flex-start; gap: 6px; }
.llmlab-quiz .widget-radio-box input { order: -1; flex: none; margin: 0 0 0 2px; }
.llmlab-quiz .widget-radio, .llmlab-quiz .widget-checkbox { height: auto; }
.llmlab-quiz .widget-radio-box { height: auto; }
.llmlab-quiz :focus-visible { outline: 2px solid #0072B2; outline-offset: 1px; }
</style>"""


class Input:
    """Where an answer is given: `widget` to show, `value()` to judge, `first` to focus."""

    def __init__(self, widget: Any, value: Any, first: Any) -> None:
        self.widget, self.value, self.first = widget, value, first


def make_input(question: Question, asked: Asked) -> Input:
    """The input that fits a question."""
    w = toolkit()

    if isinstance(question, ProseQuestion):
        area = w.Textarea(placeholder="your own words", description="Answer")
        area.layout.width, area.layout.height = "min(760px, calc(100% - 8px))", "110px"
        return Input(area, lambda: area.value, area)
    if isinstance(question, NumericQuestion):
        return _text(example_for(question.unit or ""))
    if isinstance(question, (OrderQuestion, MatchQuestion)):
        made = _text(asked.how)
        lists = [_list(asked.lefts, "1")] if asked.lefts else []
        lists.append(_list([text for _, text in asked.choices], "a"))
        return Input(w.VBox([*lists, made.widget]), made.value, made.first)
    if isinstance(question, SingleQuestion) or not question.many:
        return _one(asked)
    return _boxes(asked)


def _one(asked: Asked) -> Input:
    """Radio buttons and a box for the letter; each follows the other."""
    w = toolkit()

    options = [(f"{letter})  {text}", letter) for letter, text in asked.choices]
    radio = w.RadioButtons(options=options, value=None, description="Options")
    radio.layout.width = "100%"
    made = _text(asked.how)
    box = made.first
    letters = [letter for letter, _ in asked.choices]

    def typed(change: Any) -> None:
        word = change["new"].strip().lower()
        radio.value = word if word in letters else None

    def picked(change: Any) -> None:
        if change["new"]:
            box.value = change["new"]

    box.observe(typed, names="value")
    radio.observe(picked, names="value")
    return Input(w.VBox([radio, made.widget]), made.value, box)


def _text(placeholder: str) -> Input:
    w = toolkit()

    box = w.Text(placeholder=placeholder, description="Answer", continuous_update=False)
    box.layout.width = "min(420px, calc(100% - 8px))"
    return Input(box, lambda: box.value, box)


def _list(texts: Sequence[str], kind: str) -> Any:
    w = toolkit()

    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    style = f"{TEXT};margin:0 0 6px 0;padding-left:28px"
    return w.HTML(f'<ol type="{kind}" style="{style}">{items}</ol>')


def _boxes(asked: Asked) -> Input:
    w = toolkit()

    boxes = []
    for letter, text in asked.choices:
        box = w.Checkbox(value=False, description=f"{letter})  {text}", indent=False)
        box.layout.width = "100%"
        boxes.append(box)

    def value() -> list[str]:
        ticked = zip(asked.choices, boxes, strict=True)
        return [letter for (letter, _), box in ticked if box.value]

    return Input(w.VBox(boxes), value, boxes[0])

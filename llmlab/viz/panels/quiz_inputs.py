"""The input of each kind of question, by labelled widgets that a keyboard reaches."""

from __future__ import annotations

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
from llmlab.viz.panels.controls import INK

TEXT = f"color:{INK};line-height:1.45;max-width:760px;overflow-wrap:anywhere"
# ipywidgets cuts long labels of radio buttons and checkboxes to one line; here they wrap.
CSS = """<style>
.llmlab-quiz .widget-radio-box label, .llmlab-quiz .widget-checkbox label {
  white-space: normal; height: auto; line-height: 1.4; padding: 2px 0; max-width: 740px;
  overflow: visible; overflow-wrap: anywhere; }
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
    import ipywidgets as w

    if isinstance(question, ProseQuestion):
        area = w.Textarea(placeholder="your own words", description="Answer")
        area.layout.width, area.layout.height = "100%", "110px"
        return Input(area, lambda: area.value, area)
    if isinstance(question, NumericQuestion):
        hint = f"a number, in {question.unit}" if question.unit else "a number"
        return _text(hint)
    if isinstance(question, OrderQuestion):
        made = _text("all letters in order, like b a c")
        return Input(w.VBox([_list(asked.choices), made.widget]), made.value, made.first)
    if isinstance(question, MatchQuestion):
        return _match(question, asked)
    if isinstance(question, SingleQuestion) or not question.many:
        radio = w.RadioButtons(options=_options(asked), value=None, description="Answer")
        radio.layout.width = "100%"
        return Input(radio, lambda: radio.value or "", radio)
    return _boxes(asked)


def _options(asked: Asked) -> list[tuple[str, str]]:
    return [(f"{letter}  {text}", letter) for letter, text in asked.choices]


def _text(placeholder: str) -> Input:
    import ipywidgets as w

    box = w.Text(placeholder=placeholder, description="Answer", continuous_update=False)
    box.layout.width = "420px"
    return Input(box, lambda: box.value, box)


def _list(choices: tuple[tuple[str, str], ...]) -> Any:
    import ipywidgets as w

    items = "".join(f"<li>{escape(text)}</li>" for _, text in choices)
    return w.HTML(f'<ol type="a" style="{TEXT};margin:0 0 4px 0">{items}</ol>')


def _boxes(asked: Asked) -> Input:
    import ipywidgets as w

    boxes = []
    for letter, text in asked.choices:
        box = w.Checkbox(value=False, description=f"{letter}  {text}", indent=False)
        box.layout.width = "100%"
        boxes.append(box)

    def value() -> list[str]:
        ticked = zip(asked.choices, boxes, strict=True)
        return [letter for (letter, _), box in ticked if box.value]

    return Input(w.VBox(boxes), value, boxes[0])


def _match(question: MatchQuestion, asked: Asked) -> Input:
    import ipywidgets as w

    parts: list[Any] = []
    downs = []
    for number, left in enumerate(asked.lefts, 1):
        down = w.Dropdown(
            options=[("choose", ""), *_options(asked)], value="", description=f"{number}"
        )
        down.layout.width = "min(640px, 100%)"
        parts += [w.HTML(f'<div style="{TEXT}">{number}. {escape(left)}</div>'), down]
        downs.append(down)
    ids = [pair.id for pair in question.pairs]

    def value() -> dict[str, str]:
        return {name: d.value for name, d in zip(ids, downs, strict=True) if d.value}

    return Input(w.VBox(parts), value, downs[0])

"""Building blocks of the panels: labelled knobs, a status line, guarded callbacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from llmlab.viz.palette import INK
from llmlab.viz.show import Shown, under_test
from llmlab.viz.widgets import toolkit

TEXT = f"color:{INK};line-height:1.45;max-width:760px;overflow-wrap:anywhere"
LABEL = {"description_width": "150px"}  # room for the longest label of a knob or menu
GLYPHS = {"info": "○", "busy": "◔", "ok": "✓", "stop": "■", "error": "✗"}
LOST = (
    "■ No kernel is behind this any more: run its cell again. Answers that were checked are kept."
)
# JupyterLab marks a view whose kernel was restarted, and leaves it standing with its last words.
# It also breaks a printed line anywhere: with this it breaks between words where it can.
PAGE_STYLE = (
    "<style>.jp-OutputArea-output pre{word-break:normal;overflow-wrap:anywhere}"
    ".widget-vbox.jupyter-widgets-disconnected[class*=llmlab-]::after"
    f'{{content:"{LOST}";order:-1;font-weight:600}}</style>'
)


def status_html(kind: str, text: str) -> str:
    """A status line that a screen reader announces: the glyph of its kind and the text, escaped."""
    return PAGE_STYLE + (
        f'<div role="status" aria-live="polite" style="color:{INK};line-height:1.4">'
        f"{GLYPHS[kind]} {escape(text)}</div>"
    )


SIMULATED, REAL = "simulated GPU", "this machine, real"
STOP_WAIT_S = 2.0  # for a real run that is left for the simulator: one at a time, if that is soon


def place_menu(real: bool, name: str) -> Any:
    """Where a panel runs its knobs' values; without a model only the simulated GPU is offered."""
    places = [SIMULATED] + ([REAL] if real else [])
    menu = menu_of("Where", "where", places, SIMULATED)
    menu.add_class(f"llmlab-{name}-where")
    return menu


def menu_of(label: str, name: str, options: Sequence[Any], value: Any) -> Any:
    """A menu of `options` that begins with `value`; ValueError says which there are."""
    if value not in options:
        raise ValueError(f"{name} = {value!r}: must be one of {', '.join(map(str, options))}")
    return toolkit().Dropdown(options=options, value=value, description=label, style=LABEL)


def wrapping(*parts: Any) -> Any:
    """Side by side, and below one another on a narrow page."""
    made = toolkit().HBox(parts)
    made.layout.flex_flow = "row wrap"
    return made


class Knob:
    """A slider with a number box: the slider for the hand, the labelled box for the rest.

    ipywidgets' sliders carry no label for screen readers, so the box holds the label. Both show
    the same `value`; `on_change(callback)` fires once per settled change by hand.
    """

    def __init__(self, label: str, value: int, low: int, high: int, step: int, name: str) -> None:
        w = toolkit()

        self._told = False
        self.box = w.BoundedIntText(
            value, min=low, max=high, step=step, description=label, style=LABEL
        )
        self.box.layout.width = "250px"
        self.slider = w.IntSlider(
            value, min=low, max=high, step=step, readout=False, continuous_update=False
        )
        self.slider.layout.width = "260px"
        self.slider.add_class(f"llmlab-{name}-slider")
        self.box.add_class(f"llmlab-{name}-box")
        self._link = w.link((self.box, "value"), (self.slider, "value"))
        self.widget = wrapping(self.box, self.slider)

    @property
    def value(self) -> int:
        return int(self.box.value)

    def tell(self, value: int) -> None:
        """Show what was run from code, and call nobody; beyond its ends the knob stays."""
        if self.box.min <= value <= self.box.max:
            self._told = True
            try:
                self.box.value = value
            finally:
                self._told = False

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call it after each new value by hand, not after `tell`."""
        self.box.observe(lambda _: None if self._told else callback(), names="value")


def guarded(show: Callable[[str], None], action: Callable[..., object]) -> Callable[..., None]:
    """Wrap a callback: an exception is shown in the panel, and raised under pytest."""

    def call(*args: Any) -> None:
        try:
            action(*args)
        except Exception as error:
            if under_test():
                raise
            show(f"{type(error).__name__}: {error}")

    return call


def prompts_shown(widget: Any, prompts: Sequence[str], how: str) -> Shown:
    """A form; where there are no widgets, what it asks and `how` to answer."""
    items = "".join(f"<li>{escape(prompt)}</li>" for prompt in prompts)
    html, text = f"<ul>{items}</ul><p>{escape(how)}</p>", "\n".join([*prompts, how])
    return Shown(widget, lambda: html, lambda: text)


def button(text: str, name: str, style: str = "") -> Any:
    """A button with a class the browser tests can find."""
    made = toolkit().Button(description=text, button_style=style)
    made.add_class(f"llmlab-{name}")
    return made

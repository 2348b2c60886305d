"""ipywidgets, or values that nobody draws: panels then still run from code, as tables and text."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


def toolkit() -> Any:
    """The module ipywidgets; where it is missing, `Plain` stand-ins under the same names."""
    try:
        return importlib.import_module("ipywidgets")
    except ImportError:
        return _PLAIN


def is_widget(thing: Any) -> bool:
    """True for what a box of ipywidgets can hold."""
    return hasattr(thing, "comm") and hasattr(thing, "_model_name")


class Plain:
    """Holds the same values as a widget, tells the same observers, and has no view.

    A value that does not fit (outside min and max, not an option) is treated as ipywidgets does:
    numbers are clamped, an unknown option is an error.
    """

    _observers: list[tuple[Callable[[Any], object], str | None]]
    _clicked: list[Callable[[Any], object]]
    description: str

    def __init__(self, *first: Any, **given: Any) -> None:
        object.__setattr__(self, "_observers", [])
        object.__setattr__(self, "_clicked", [])
        state: dict[str, Any] = {"disabled": False, "description": "", "children": ()}
        state |= {"layout": SimpleNamespace(display=""), "style": None, **given}
        if "options" in state and "value" not in state:
            state["value"] = next((_value(o) for o in state["options"]), None)
        state.setdefault("value", "")
        if first:
            state["children" if isinstance(first[0], (list, tuple)) else "value"] = first[0]
        for name, value in state.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        value = self._fitting(name, value)
        old = getattr(self, name, None)
        object.__setattr__(self, name, value)
        if old != value:
            for called, names in list(self._observers):
                if names in (None, name):
                    called({"name": name, "old": old, "new": value, "owner": self})

    def _fitting(self, name: str, value: Any) -> Any:
        if name != "value":
            return value
        options = getattr(self, "options", None)
        if options is not None and value is not None and value not in map(_value, options):
            raise ValueError(f"{value!r} is none of the options of {self.description!r}")
        for bound, choose in (("min", max), ("max", min)):
            if hasattr(self, bound):
                value = choose(value, getattr(self, bound))
        return value

    def observe(self, called: Callable[[Any], object], names: str | None = None) -> None:
        self._observers.append((called, names))

    def on_click(self, called: Callable[[Any], object]) -> None:
        self._clicked.append(called)

    def click(self) -> None:
        for called in list(self._clicked):
            called(self)

    def add_class(self, name: str) -> Plain:
        return self

    def focus(self) -> None:
        """Nobody looks."""

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return {}


def _value(option: Any) -> Any:
    """An option is a value, or a pair of label and value."""
    return option[1] if isinstance(option, tuple) else option


def _link(left: tuple[Plain, str], right: tuple[Plain, str]) -> None:
    def follow(source: tuple[Plain, str], target: tuple[Plain, str]) -> None:
        source[0].observe(lambda change: setattr(*target, change["new"]), names=source[1])

    follow(left, right)
    follow(right, left)


NAMES = (
    "BoundedIntText",
    "Button",
    "Checkbox",
    "Dropdown",
    "HBox",
    "HTML",
    "IntProgress",
    "IntSlider",
    "RadioButtons",
    "Text",
    "Textarea",
    "VBox",
)
_PLAIN = SimpleNamespace(link=_link, **dict.fromkeys(NAMES, Plain))

"""What every panel has: a view, a status line, and a form for a page without widgets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmlab.viz.panels.controls import Knob, guarded, status_html
from llmlab.viz.show import Shown


class Panel:
    """A panel makes `widget` and `status`; `shown` says what stands where no widget works."""

    widget: Any
    status: Any

    def shown(self) -> Shown:
        """The view, with its numbers as a table or as text."""
        raise NotImplementedError

    def _on_change(self, action: Callable[[], object], *controls: Any) -> None:
        """Call `action` after each new value of a knob or a menu; what it raises is shown."""
        call = guarded(self._fail, action)
        for control in controls:
            if isinstance(control, Knob):
                control.on_change(call)
            else:
                control.observe(lambda _: call(), names="value")

    def _on_click(self, action: Callable[[], object], made: Any) -> None:
        """Call `action` whenever this button is pressed; what it raises is shown."""
        call = guarded(self._fail, action)
        made.on_click(lambda _: call())

    def _say(self, kind: str, text: str) -> None:
        self.status.value = status_html(kind, text)

    def _fail(self, text: str) -> None:
        self._say("error", text)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        return self.shown()._repr_mimebundle_(**kwargs)

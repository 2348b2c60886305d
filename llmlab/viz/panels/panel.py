"""What every panel has: a view, a status line, and a form for a page without widgets."""

from __future__ import annotations

from typing import Any

from llmlab.viz.panels.controls import status_html
from llmlab.viz.show import Shown


class Panel:
    """A panel makes `widget` and `status`; `shown` says what stands where no widget works."""

    widget: Any
    status: Any

    def shown(self) -> Shown:
        """The view, with its numbers as a table or as text."""
        raise NotImplementedError

    def _say(self, kind: str, text: str) -> None:
        self.status.value = status_html(kind, text)

    def _fail(self, text: str) -> None:
        self._say("error", text)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        return self.shown()._repr_mimebundle_(**kwargs)

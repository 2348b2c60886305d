"""What a check says: a state, always with a glyph and a word, and never the expected value."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any, Literal

State = Literal["correct", "partial", "incorrect", "not answered yet", "error"]
GLYPHS: dict[State, str] = {
    "correct": "✓",
    "partial": "◐",
    "incorrect": "✗",
    "not answered yet": "○",
    "error": "!",
}
# Darkened Okabe-Ito hues as the border only; the text keeps the page's own colour.
_COLOURS: dict[State, str] = {
    "correct": "#0A8F6A",
    "partial": "#A8578F",
    "incorrect": "#D55E00",
    "not answered yet": "#7A7A7A",
    "error": "#D55E00",
}


@dataclass(frozen=True)
class Result:
    """One check. `score` is the share of the points, 0 to 1; `hint` the next help, if any."""

    item_id: str
    state: State
    message: str
    understood: str = ""
    hint: str = ""
    score: float = 0.0
    misconception: str | None = None

    @property
    def glyph(self) -> str:
        """The sign beside the word."""
        return GLYPHS[self.state]

    def lines(self) -> list[str]:
        """The parts in reading order: state, what was read, message, hint."""
        head = f"{self.glyph} {self.item_id}: {self.state}"
        parts = [head if not self.understood else f"{head} ({self.understood})"]
        if self.message:
            parts.append(self.message)
        if self.hint:
            parts.append(f"Hint: {self.hint}")
        return parts

    def __repr__(self) -> str:
        return "\n  ".join(self.lines())

    def _repr_html_(self) -> str:
        head, *rest = self.lines()
        body = "".join(f"<div>{escape(line)}</div>" for line in rest)
        style = f"border-left:4px solid {_COLOURS[self.state]};padding:2px 10px;margin:2px 0"
        return (
            f'<div role="status" style="{style}"><div><strong>{escape(head)}</strong></div>'
            f"{body}</div>"
        )

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}


def refused(item_id: str, error: Exception) -> Result:
    """An answer that cannot be read; the error's words as a sentence."""
    text = str(error)
    return Result(item_id, "error", f"{text[:1].upper()}{text[1:]}.")


def unchecked(item_id: str) -> Result:
    """A fault of the checker's own, of which nothing is shown."""
    return Result(item_id, "error", "This could not be checked; nothing was counted.")

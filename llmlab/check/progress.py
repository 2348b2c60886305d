"""Progress: the best result of every item so far, as a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import Any, cast

from llmlab.check.result import GLYPHS, State
from llmlab.check.store import Store

_ORDER: tuple[State, ...] = ("not answered yet", "error", "incorrect", "partial", "correct")


@dataclass(frozen=True)
class ItemProgress:
    """One item: best state, attempts, deepest hint."""

    item: str
    state: State
    attempts: int
    hints: int


@dataclass(frozen=True)
class Progress:
    """All items; `done` of them are correct."""

    rows: tuple[ItemProgress, ...]

    @property
    def done(self) -> int:
        """Items answered correctly at least once."""
        return sum(row.state == "correct" for row in self.rows)

    @classmethod
    def of(cls, store: Store, items: Iterable[str]) -> Progress:
        """Progress over `items` from a store's events."""
        best: dict[str, State] = {}
        attempts: dict[str, int] = {}
        hints: dict[str, int] = {}
        for event in store.events():
            if event.kind == "hint":
                level = int(event.data.get("level", 0))
                hints[event.item] = max(level, hints.get(event.item, 0))
            elif event.kind == "attempt":
                state = event.data.get("state")
                if state not in _ORDER:
                    continue
                attempts[event.item] = attempts.get(event.item, 0) + 1
                before = best.get(event.item, "not answered yet")
                best[event.item] = max(before, cast(State, state), key=_ORDER.index)
        return cls(
            tuple(
                ItemProgress(
                    name,
                    best.get(name, "not answered yet"),
                    attempts.get(name, 0),
                    hints.get(name, 0),
                )
                for name in items
            )
        )

    def __repr__(self) -> str:
        lines = [f"{self.done} of {len(self.rows)} correct"]
        for row in self.rows:
            if row.attempts or row.hints:
                lines.append(f"{GLYPHS[row.state]} {row.item}: {row.state}, {_count(row)}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><td>{escape(row.item)}</td><td>{GLYPHS[row.state]} {row.state}</td>"
            f"<td>{_count(row)}</td></tr>"
            for row in self.rows
        )
        return (
            f'<table><caption style="text-align:left">{self.done} of {len(self.rows)} correct'
            '</caption><thead><tr><th scope="col">item</th><th scope="col">state</th>'
            f'<th scope="col">attempts</th></tr></thead><tbody>{cells}</tbody></table>'
        )

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}


def _count(row: ItemProgress) -> str:
    tries = f"{row.attempts} attempt{'s' if row.attempts != 1 else ''}"
    return f"{tries}, {row.hints} hint{'s' if row.hints != 1 else ''}" if row.hints else tries

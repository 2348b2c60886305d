"""One object to show: a live view where widgets work, a table and text everywhere else.

A cell's last expression is never a bare widget: its saved form would be megabytes, differ from
run to run and show nothing on a page without a kernel. `Shown` gives a widget view, a static
HTML and a plain text form at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from html import escape
from typing import Any


class Shown:
    """What a notebook displays: `widget` (or None), `html()` and `text()`."""

    def __init__(
        self, widget: Any | None, html: Callable[[], str], text: Callable[[], str]
    ) -> None:
        self.widget = widget
        self._html = html
        self._text = text

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/plain": self._text(), "text/html": self._html()}
        if self.widget is not None:
            view = self.widget._repr_mimebundle_()
            kind = "application/vnd.jupyter.widget-view+json"
            if view and kind in view:
                bundle[kind] = view[kind]
        return bundle

    def __repr__(self) -> str:
        return self._text()


def table_html(caption: str, head: list[str], rows: list[list[str]]) -> str:
    """An accessible table: caption, column heads with scope, every cell escaped.

    On a narrow page it scrolls sideways in its own box, so that no column is cut off.
    """
    heads = "".join(f'<th scope="col" style="text-align:left">{escape(h)}</th>' for h in head)
    body = "".join(
        "<tr>" + "".join(f'<td style="text-align:left">{escape(c)}</td>' for c in row) + "</tr>"
        for row in rows
    )
    return (
        f'<div style="overflow-x:auto"><table><caption style="text-align:left">{escape(caption)}'
        f"</caption><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def table_text(caption: str, head: list[str], rows: list[list[str]]) -> str:
    """The same table in plain text, columns aligned."""
    widths = [max(len(line[i]) for line in [head, *rows]) for i in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in [head, *rows]
    ]
    return "\n".join([caption, *lines])


def live_figure(figure: Any) -> Any | None:
    """A FigureWidget that fills its box, or None where anywidget is missing."""
    try:
        import plotly.graph_objects as go

        widget = go.FigureWidget(figure)
    except ImportError:
        return None
    widget.update_layout(autosize=True)
    widget._config = {**widget._config, "displayModeBar": False, "responsive": True}
    return widget


def under_test() -> bool:
    """True under pytest: there an error in a callback must fail the test, not fill a label."""
    return "PYTEST_CURRENT_TEST" in os.environ

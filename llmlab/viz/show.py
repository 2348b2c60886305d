"""One object to show: a live view where widgets work, a table and text everywhere else.

A cell's last expression is never a bare widget: its saved form would be megabytes, differ from
run to run and show nothing on a page without a kernel. `Shown` gives a widget view, a static
HTML and a plain text form at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from html import escape
from typing import Any

from llmlab.viz.widgets import is_widget, toolkit

WITHOUT_FIGURES = "A live figure needs the package anywidget; the table has the same numbers."
LONGEST_HEAD = 18
LONGEST_OPEN = 12  # rows
PLOTLY = "application/vnd.plotly.v1+json"
VIEW = "application/vnd.jupyter.widget-view+json"


class Shown:
    """What a notebook displays: `widget` (or None), `html()` and `text()`.

    widget may be a plain plotly figure, where no live one can be made; a panel without widgets
    gives its figure beside itself. Such a figure goes into the bundle as it is, unmoved. A live
    figure by itself gets `html()` below it: numbers that a cell's text speaks of must be seen.
    """

    def __init__(
        self,
        widget: Any | None,
        html: Callable[[], str],
        text: Callable[[], str],
        figure: Any | None = None,
    ) -> None:
        self.widget = widget
        self.figure = widget if figure is None else figure
        self._html = html
        self._text = text

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/plain": self._text(), "text/html": self._html()}
        shown = self._with_table(bundle["text/html"])
        view = shown._repr_mimebundle_() if shown is not None else None
        if view and VIEW in view:
            bundle[VIEW] = view[VIEW]
        elif (as_json := getattr(self.figure, "to_json", None)) is not None:
            bundle[PLOTLY] = json.loads(as_json())
        return bundle

    def _with_table(self, table: str) -> Any:
        if not (table and is_widget(self.widget) and hasattr(self.widget, "batch_update")):
            return self.widget
        return toolkit().VBox([self.widget, toolkit().HTML(folded(table))])

    def __repr__(self) -> str:
        return self._text()


def folded(table: str) -> str:
    """A table as a part that opens and closes; a long one begins closed."""
    rows = table.count("<tr>") - table.count("<thead>")
    state = " open" if rows <= LONGEST_OPEN else ""
    return f"<details{state}><summary>The same as a table</summary>{table}</details>"


def table_html(caption: str, head: list[str], rows: list[list[str]]) -> str:
    """An accessible table: caption, column heads with scope, every cell escaped.

    On a narrow page it scrolls sideways in its own box, so that no column is cut off; only cells
    that hold a sentence wrap.
    """
    heads = "".join(_cell(h, "th", LONGEST_HEAD) for h in head)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return (
        # No width of its own: else a wide table widens all that stands beside it in a panel.
        f'<div style="overflow-x:auto;width:0;min-width:100%"><table>'
        # The caption stays in view while the table below it moves.
        f'<caption style="text-align:left"><span style="position:sticky;left:0">{escape(caption)}'
        f"</span></caption><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(text: str, tag: str = "td", longest: int = 40) -> str:
    width = "white-space:nowrap" if len(text) <= longest else f"min-width:{longest / 3:.0f}em"
    scope = ' scope="col"' if tag == "th" else ""
    look = f"text-align:left;padding:2px 12px 2px 4px;line-height:1.35;{width}"
    return f'<{tag}{scope} style="{look}">{escape(text)}</{tag}>'


def table_text(caption: str, head: list[str], rows: list[list[str]]) -> str:
    """The same table in plain text, columns aligned."""
    widths = [max(len(line[i]) for line in [head, *rows]) for i in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in [head, *rows]
    ]
    return "\n".join([caption, *lines])


def shown_table(
    caption: str,
    head: list[str],
    rows: list[list[str]],
    widget: Any | None = None,
    figure: Any | None = None,
) -> Shown:
    """A table as HTML and as text; with a widget or a figure, what `Shown` makes of both."""
    table = (caption, head, rows)
    return Shown(widget, lambda: table_html(*table), lambda: table_text(*table), figure)


def number(value: float | None, digits: int = 1) -> str:
    """A cell of a table. What is undefined is a dash there, never 0."""
    return "–" if value is None else f"{value:,.{digits}f}"


def live_figure(figure: Any) -> Any:
    """A FigureWidget that fills its box, or the figure as it is where anywidget is missing."""
    try:
        from llmlab.viz.live_figure import LiveFigure
    except ImportError:
        return figure
    widget = LiveFigure(figure)
    widget.update_layout(autosize=True)
    widget._config = {**widget._config, "displayModeBar": False, "responsive": True}
    return widget


def boxed(*figures: Any) -> list[Any]:
    """Live figures as children of a panel; a sentence in place of those that cannot live."""
    if all(is_widget(figure) for figure in figures):
        return list(figures)
    return [toolkit().HTML(f"<p>{WITHOUT_FIGURES}</p>")]


def under_test() -> bool:
    """True under pytest: there an error in a callback must fail the test, not fill a label."""
    return "PYTEST_CURRENT_TEST" in os.environ

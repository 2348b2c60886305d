"""What a question shows: its prompt, and the report or the steps of a trace that it is about."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from llmlab.check.present import Asked, Table
from llmlab.viz.palette import INK, QUIET
from llmlab.viz.panels.controls import TEXT


def question_html(asked: Asked) -> str:
    """Prompt, report and trace of a question, escaped."""
    parts = [f'<div style="{TEXT};margin-bottom:6px">{escape(asked.prompt)}</div>']
    if asked.report:
        style = f"color:{INK};border-left:3px solid {QUIET};padding:4px 10px;overflow-x:auto"
        parts.append(f'<pre style="{style};margin:6px 0">{escape(asked.report.rstrip())}</pre>')
    if asked.table:
        parts.append(trace_html(asked.table))
    parts.append(f'<div style="{TEXT};opacity:.8">{escape(asked.how)}.</div>')
    return "".join(parts)


def trace_html(table: Table) -> str:
    """The steps of a trace: numbers to the right, words to the left, every cell escaped."""
    sides = ["left" if name in table.words else "right" for name in table.head]

    def row(tag: str, cells: Sequence[str]) -> str:
        scope = ' scope="col"' if tag == "th" else ""
        pairs = zip(cells, sides, strict=True)
        made = (
            f'<{tag}{scope} style="text-align:{side};padding:1px 14px 1px 0">{escape(cell)}</{tag}>'
            for cell, side in pairs
        )
        return f"<tr>{''.join(made)}</tr>"

    body = "".join(row("td", cells) for cells in table.rows)
    style = f"color:{INK};line-height:1.35;font-variant-numeric:tabular-nums;border-spacing:0"
    return (
        f'<div style="{TEXT};opacity:.85;margin:6px 0 2px">{escape(table.caption)}</div>'
        f'<div style="overflow-x:auto;margin-bottom:6px"><table style="{style}" '
        f'aria-label="steps of the trace"><thead>{row("th", table.head)}</thead>'
        f"<tbody>{body}</tbody></table></div>"
    )

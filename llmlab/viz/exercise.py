"""Code exercises that never block a lab: a stub is told apart, and the library's part is used."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from textwrap import fill, indent
from typing import Protocol, TypeVar

from llmlab.check.library import find_question
from llmlab.check.present import ask
from llmlab.check.student import Student, current_student
from llmlab.viz.show import Shown, table_html, table_text

T = TypeVar("T")
COLUMNS = 88  # of plain text: a terminal breaks longer lines within words


class Asks(Protocol):
    """An item of a worksheet, or a question as one."""

    def prompt_for(self, student: Student) -> str: ...


def print_prompt(item: Asks) -> None:
    """What an item asks this student, in lines that fit a page."""
    prompt = item.prompt_for(current_student())
    _put(_line(prompt), fill(prompt, COLUMNS))


def print_question(question_id: str) -> None:
    """A question, what it is about, and its lettered options."""
    asked = ask(find_question(question_id), current_student())
    html, text = [_line(asked.prompt)], [fill(asked.prompt, COLUMNS)]
    if asked.report:
        html.append(f'<pre style="white-space:pre;overflow-x:auto">{escape(asked.report)}</pre>')
        text += ["", indent(asked.report, "    ")]
    if asked.table is not None:
        table = asked.table.caption, list(asked.table.head), [list(r) for r in asked.table.rows]
        html.append(table_html(*table))
        text += ["", table_text(*table), ""]
    for letter, choice in asked.choices:
        html.append(_line(f"{letter}) {choice}", "padding-left:1.6em;text-indent:-1.2em;"))
        text.append(fill(f"  {letter}) {choice}", COLUMNS, subsequent_indent="     "))
    _put("".join(html), "\n".join(text))


def _line(text: str, look: str = "") -> str:
    return f'<div style="{look}max-width:760px;line-height:1.45">{escape(text)}</div>'


def _put(html: str, text: str) -> None:
    from IPython.display import display

    display(Shown(None, lambda: html, lambda: text))  # type: ignore[no-untyped-call]


def attempt(name: str, mine: Callable[[], T], instead: Callable[[], T]) -> T:
    """The learner's result; while `name` is a stub or fails, the library's, and it says so."""
    try:
        value = mine()
    except NotImplementedError:
        print(f"○ {name}: not answered yet; the library's own is used below.")
    except Exception as error:
        print(f"✗ {name}: {type(error).__name__}: {error}. The library's own is used below.")
    else:
        if value is not None and value is not ...:
            print(f"✓ {name}: yours is used below.")
            return value
        print(f"○ {name}: returns nothing yet; the library's own is used below.")
    return instead()

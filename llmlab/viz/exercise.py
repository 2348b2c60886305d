"""Code exercises that never block a lab: a stub is told apart, and the library's part is used."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import fill, indent
from typing import Protocol, TypeVar

from llmlab.check.library import find_question
from llmlab.check.present import ask
from llmlab.check.student import Student, current_student
from llmlab.viz.show import table_text

T = TypeVar("T")
COLUMNS = 88  # a notebook breaks longer lines within words


class Asks(Protocol):
    """An item of a worksheet, or a question as one."""

    def prompt_for(self, student: Student) -> str: ...


def print_prompt(item: Asks) -> None:
    """What an item asks this student, in lines that fit a page."""
    print(fill(item.prompt_for(current_student()), COLUMNS))


def print_question(question_id: str) -> None:
    """A question, what it is about, and its lettered options."""
    asked = ask(find_question(question_id), current_student())
    print(fill(asked.prompt, COLUMNS))
    if asked.report:
        print("", indent(asked.report, "    "), sep="\n")
    if asked.table is not None:
        rows = [list(row) for row in asked.table.rows]
        print("", table_text(asked.table.caption, list(asked.table.head), rows), "", sep="\n")
    for letter, text in asked.choices:
        print(fill(f"  {letter}) {text}", COLUMNS, subsequent_indent="     "))


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

"""How a command fails: one sentence on stderr that says what to do, and status 2."""

from __future__ import annotations

from typing import NoReturn

import typer
from rich.text import Text

from llmlab.cli.console import console


def complain(message: object, head: str = "error:", style: str = "red") -> None:
    """The sentence on stderr, never read as markup: a path may hold brackets.

    On a terminal it wraps between words; in a log it is one line, which a search finds whole.
    """
    err = console(stderr=True)
    err.print(Text.assemble((head, style), f" {message}"), soft_wrap=not err.is_terminal)


def fail(message: object) -> NoReturn:
    """Complain and end the command with status 2."""
    complain(message)
    raise typer.Exit(2) from None

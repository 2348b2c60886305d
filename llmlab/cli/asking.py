"""Asking a question in a terminal: shared by `llmlab quiz` and `llmlab interview`.

Plain lines, no cursor tricks: works at 80 columns, with NO_COLOR, with a screen reader, with
answers from a pipe. `Stopped` is raised where input ends or Ctrl-C is pressed.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from llmlab.cli.console import console

if TYPE_CHECKING:
    from llmlab.check.present import Asked, Revealed
    from llmlab.check.prose import Commitment
    from llmlab.check.result import Result

WIDTH = 80
PASTE_S = 0.05
SKIP, QUIT = ("s", "skip"), ("q", "quit")  # what may be typed in place of an answer
Key = Literal["skip", "quit"]
STYLES = {"correct": "bold green", "partial": "bold yellow", "incorrect": "bold red"}
NOTES = (
    "What assumption could change your answer? (Enter to leave out) ",
    "What observation would make you revise it? (Enter to leave out) ",
)


class Stopped(Exception):
    """The learner is gone: `interrupted` by Ctrl-C, or the input ended."""

    def __init__(self, interrupted: bool) -> None:
        super().__init__()
        self.interrupted = interrupted


class Screen:
    """Where questions are written and answers read."""

    def __init__(self) -> None:
        self.out = console()
        self.width = min(WIDTH, self.out.width)

    def say(self, text: str = "", style: str = "", indent: int = 0) -> None:
        """A paragraph, wrapped; never read as markup."""
        body = Text(text, style=style)
        self.out.print(Padding(body, (0, 0, 0, indent)) if indent else body, width=self.width)

    def item(self, head: str, text: str, style: str = "", indent: int = 2) -> None:
        """A paragraph that hangs beside its head."""
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column(ratio=1)
        grid.add_row(Text(head, style="bold"), Text(text, style=style))
        self.out.print(Padding(grid, (0, 0, 0, indent)), width=self.width)

    def rule(self, text: str) -> None:
        """A heading line."""
        self.out.print()
        self.out.rule(Text(text, style="bold"), align="left", style="dim")

    def read(self, prompt: str) -> str:
        """One line; Stopped when there is none."""
        try:
            self.out.print(Text(prompt, style="bold"), end="", soft_wrap=True)
            line = input().strip()
        except EOFError:
            self.out.print()
            raise Stopped(False) from None
        except KeyboardInterrupt:
            self.out.print()
            raise Stopped(True) from None
        if not is_terminal():
            self.out.print(Text(line))  # a terminal has shown it already
        return line

    def read_words(self) -> str:
        """Lines up to an empty one; a key such as s alone on the first line is taken at once.

        An empty line inside a pasted text, with more of it waiting, does not end the answer.
        """
        lines: list[str] = []
        while (line := self.read("> ")) or (lines and is_pasting()):
            lines.append(line)
            if lines[0].lower() in (*SKIP, *QUIT):
                break
        return "\n".join(lines)

    def committed(self, commit: Callable[[str], Commitment]) -> Commitment | Key:
        """Words that `commit` has taken; asked for again where it refuses them by a ValueError."""
        while True:
            text = self.read_words()
            if text.lower() in QUIT:
                return "quit"
            if not text or text.lower() in SKIP:
                return "skip"
            try:
                commitment = commit(text)
            except ValueError as error:
                self.say(str(error), indent=2)
                continue
            self.say(f"Committed, sha256 {commitment.sha256[:12]}.", style="dim")
            return commitment

    # -- a question --------------------------------------------------------------------------

    def question(self, asked: Asked) -> None:
        """The question as it is asked."""
        self.say(asked.prompt)
        if asked.report:
            self.out.print()
            for line in asked.report.rstrip().splitlines():
                self.out.print(Text(f"  │ {line}", style="cyan"), soft_wrap=True)
        if asked.table:
            self.out.print()
            self.steps(asked.table)
        if asked.choices:
            self.out.print()
        for number, left in enumerate(asked.lefts, 1):
            self.item(str(number), left)
        if asked.lefts:
            self.out.print()
        for letter, text in asked.choices:
            self.item(letter, text)

    def steps(self, table: Any) -> None:
        """A trace's steps, its caption above."""
        self.say(table.caption, style="dim")
        grid = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
        for name in table.head:
            grid.add_column(name, justify="left" if name in table.words else "right")
        for row in table.rows:
            grid.add_row(*(Text(cell) for cell in row))
        self.out.print(Padding(grid, (0, 0, 0, 2)), width=self.width)

    def result(self, result: Result) -> None:
        """State with its sign and word, then the message and the hint."""
        head = f"{result.glyph} {result.state}"
        if result.understood:
            head += f" ({result.understood})"
        self.say(head, style=STYLES.get(result.state, "bold"))
        if result.message:
            self.say(result.message, indent=2)
        if result.hint:
            self.say(f"Hint: {result.hint}", indent=2)

    def short(self, shown: Revealed, knows: bool = False) -> None:
        """The short answer, with what is right; left out where the learner `knows` it already."""
        self.item("Short", shown.short, indent=0)
        for line in shown.answer:
            if knows and line.startswith("✓"):
                continue
            head, _, rest = line.partition("  ")
            self.item(head, rest) if rest else self.say(line, indent=2)

    def confidence(self, levels: Sequence[str]) -> str:
        """How sure the learner is, "" if left out."""
        choices = ", ".join(f"{n} {level}" for n, level in enumerate(levels, 1))
        while True:
            given = self.read(f"How sure are you? {choices}: ").lower()
            if not given:
                return ""
            if given in levels:
                return given
            if given.isdecimal() and 1 <= int(given) <= len(levels):
                return levels[int(given) - 1]
            self.say(f"Type 1 to {len(levels)}, or Enter to leave it out.", style="dim")

    def feel(self, keep: Callable[..., None], notes: bool) -> None:
        """Ask how sure the learner is and `keep` it at once; then, on request, with its notes."""
        from llmlab.check.spacing import CONFIDENCE

        level = self.confidence(CONFIDENCE)
        if level:
            keep(level)
            if notes and any(texts := [self.read(note) for note in NOTES]):
                keep(level, *texts)

    def self_score(self, commitment: Commitment, keep: Callable[[list[str]], float]) -> None:
        """The rubric, the learner's own points by it, and the share of them that `keep` gives."""
        met = self.rubric(commitment)
        self.say(f"{len(met)} of {len(commitment.rubric)} points, {keep(met):.0%}")

    def rubric(self, commitment: Commitment) -> list[str]:
        """Which points of the rubric the learner says are met."""
        self.say("Score yourself by the rubric:", style="bold")
        rubric = commitment.rubric
        for number, criterion in enumerate(rubric, 1):
            self.item(str(number), criterion.text)
        while True:
            given = self.read("Which are met? Numbers like 1 3, Enter for none: ")
            words = given.replace(",", " ").split()
            if all(w.isdecimal() and 1 <= int(w) <= len(rubric) for w in words):
                return [rubric[int(w) - 1].id for w in dict.fromkeys(words)]
            self.say(f"Type numbers from 1 to {len(rubric)}.", style="dim")


def is_pasting() -> bool:
    """Whether a terminal holds more typed lines already: nobody types so fast."""
    try:
        return is_terminal() and bool(select.select([sys.stdin], [], [], PASTE_S)[0])
    except (OSError, ValueError):  # Windows can only ask sockets
        return False


def is_terminal() -> bool:
    """Whether somebody types (as opposed to answers from a pipe)."""
    return sys.stdin.isatty()

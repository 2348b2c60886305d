"""`llmlab interview`: a timed mock interview in the terminal, ending in a one-page report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmlab.cli.asking import QUIT, SKIP, Screen, Stopped
from llmlab.cli.failing import fail

if TYPE_CHECKING:
    from llmlab.check.interview import Interview, Turn

app = typer.Typer(add_completion=False)
CLOCK: Callable[[], float] = time.monotonic

EXAMPLES = (
    "Examples:  llmlab interview --role inference   ·   "
    "llmlab interview --role product --minutes 15 --out today.html"
)


@app.command(epilog=EXAMPLES)
def interview(
    role: Annotated[str, typer.Option(help="inference or product.")] = "inference",
    minutes: Annotated[float, typer.Option(help="How long it may take, 1 to 180.")] = 30,
    seed: Annotated[int, typer.Option(min=0, help="Which questions are asked.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The report: this HTML file, and Markdown beside it. Without it the next free "
            "name: interview.html, interview-2.html, ..."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write the report's data as JSON too, beside it.")
    ] = False,
) -> None:
    """A timed mock interview that ends in a one-page report.

    An opening question, follow-ups that climb from L1 to L4, a wrong answer, estimates.

    Words are committed before their rubric is shown; then you score yourself.

    Ctrl-C ends early and still writes the report.
    """
    from llmlab.check.interview import Interview
    from llmlab.check.quiz import whole_bank
    from llmlab.check.store import default_store
    from llmlab.check.student import current_student

    try:
        out = _free() if out is None else out
        if out.suffix.lower() not in (".html", ".htm"):
            raise ValueError(f"--out {out}: must end in .html")
        if not out.resolve().parent.is_dir():
            raise ValueError(f"--out {out}: there is no folder {out.parent}")
        held = Interview(
            whole_bank(),
            role,
            minutes,
            store=default_store(),
            student=current_student(),
            clock=CLOCK,
            seed=seed,
        )
    except ValueError as error:
        fail(error)
    screen = Screen()
    interrupted = _Asker(screen, held).run()
    written = _write(screen, held, out, as_json)
    for path in written:
        screen.say(f"wrote {path}")
    if interrupted:
        raise typer.Exit(130)


class _Asker:
    """One interview in a terminal."""

    def __init__(self, screen: Screen, held: Interview) -> None:
        self.screen, self.held = screen, held

    def run(self) -> bool:
        """Ask until the time is up; True if Ctrl-C ended it."""
        from llmlab.check.interview import ROLES

        self.screen.say(
            f"Mock interview, {ROLES[self.held.role]}, {self.held.minutes:g} minutes. Say each "
            "answer aloud first, then type it. Keys: s skip, q end."
        )
        try:
            while (turn := self.held.next()) is not None:
                if not self._turn(turn):
                    break
            else:
                self.screen.say()
                over = self.held.left_s <= 0
                self.screen.say("The time is up." if over else "That was the last question.")
        except Stopped as stopped:
            return stopped.interrupted
        return False

    def _turn(self, turn: Turn) -> bool:
        from llmlab.check.interview import TITLES
        from llmlab.check.present import ask
        from llmlab.check.question import ProseQuestion

        asked = ask(turn.question, self.held.sitting.student)
        minutes, seconds = divmod(int(self.held.left_s), 60)
        self.screen.rule(
            f"{len(self.held.turns)} · {TITLES[turn.part]} · {turn.question.level} · "
            f"{minutes}:{seconds:02d} left"
        )
        self.screen.question(asked)
        if isinstance(turn.question, ProseQuestion):
            return self._words(turn)
        self.screen.say(f"{asked.how} (s skip, q end)", style="dim")
        return self._choice(turn)

    def _choice(self, turn: Turn) -> bool:
        while True:
            given = self.screen.read("Answer: ")
            if given.lower() in QUIT:
                return False
            if given.lower() in SKIP:
                self.held.skip(turn)
                return True
            trouble = (
                self.held.sitting.misread(turn.question, given) if given else "Type an answer."
            )
            if not trouble:
                break
            self.screen.say(trouble, indent=2)
        result = self.held.answer(turn, given)
        self._feel(turn)
        self.screen.result(result)
        return True

    def _words(self, turn: Turn) -> bool:
        from llmlab.check.present import reveal

        self.screen.say("Your answer, an empty line to end (s skip, q end)", style="dim")
        commitment = self.screen.committed(partial(self.held.commit, turn))
        if commitment == "quit":
            return False
        if commitment == "skip":
            self.held.skip(turn)
            return True
        self._feel(turn)
        self.screen.short(reveal(turn.question, self.held.sitting.student))
        self.screen.self_score(commitment, partial(self.held.score, turn, commitment))
        return True

    def _feel(self, turn: Turn) -> None:
        notes = turn.question.level in ("L3", "L4")
        self.screen.feel(partial(self.held.feel, turn), notes)


def _free() -> Path:
    """interview.html, or the next number: an earlier report stays."""
    names = (Path(f"interview{'' if n == 1 else f'-{n}'}.html") for n in count(1))
    return next(path for path in names if not path.exists())


def _write(screen: Screen, held: Interview, out: Path, as_json: bool) -> list[Path]:
    """Write the report; nothing was lost if the disk refuses, and that is said."""
    from llmlab.check.interview_report import html, markdown, percent, report_data

    data: dict[str, Any] = report_data(held, datetime.now())
    held.sitting.store.add("interview", held.role, data, held.sitting.student)
    n = data["answered"]
    screen.rule("Your interview")
    screen.say(
        f"{n} question{'' if n == 1 else 's'}, {percent(data['score'])} of the points, "
        f"highest level passed {data['highest_level'] or 'none yet'}."
    )
    screen.say(data["verdict"])
    for gap in data["gaps"]:
        screen.say(f"Redo {gap['redo']}: {gap['about']} ({gap['levels']})", indent=2)
    files = {out: html(data), out.with_suffix(".md"): markdown(data)}
    if as_json:
        files[out.with_suffix(".json")] = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
    try:
        for path, text in files.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"the report cannot be written: {error}; use --out FILE")
    return list(files)

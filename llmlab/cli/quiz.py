"""`llmlab quiz`: practise the question bank in the terminal, or list it."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from llmlab.cli.asking import QUIT, SKIP, Screen, Stopped
from llmlab.cli.failing import fail

if TYPE_CHECKING:
    from llmlab.check.question import ProseQuestion, Question
    from llmlab.check.quiz import Sitting

app = typer.Typer(add_completion=False)

EXAMPLES = (
    "Examples:  llmlab quiz   ·   llmlab quiz --topic traces --count 5   ·   "
    "llmlab quiz --role product --level L2   ·   llmlab quiz --topic B5 --json"
)
KEYS = "s skip, q quit"


@app.command(epilog=EXAMPLES)
def quiz(
    topic: Annotated[
        str | None, typer.Option(help="A topic such as traces, or a curriculum id such as B5.")
    ] = None,
    level: Annotated[str | None, typer.Option(help="L1, L2, L3 or L4.")] = None,
    role: Annotated[str | None, typer.Option(help="inference or product.")] = None,
    count: Annotated[int, typer.Option(min=1, max=1000, help="How many questions.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Order of questions not asked yet.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="List the questions as JSON, without answers.")
    ] = False,
) -> None:
    """Practise questions: answer first, then the short answer, then the full one.

    What you missed comes back sooner, by the spacing rule FSRS (py-fsrs).

    Every answer is kept as you give it; Ctrl-C ends the quiz and loses nothing.
    """
    from llmlab.check.quiz import Sitting, listing, select, whole_bank
    from llmlab.check.store import default_store
    from llmlab.check.student import current_student

    try:
        store = default_store()
        chosen = select(
            whole_bank(), store, topic=topic, level=level, role=role, count=count, seed=seed
        )
    except ValueError as error:
        fail(error)
    if as_json:
        print(json.dumps({"questions": listing(chosen, store)}, indent=1, ensure_ascii=False))
        return
    sitting = Sitting(chosen, store, current_student())
    _Quiz(Screen(), sitting).run()


class _Quiz:
    """One sitting in a terminal."""

    def __init__(self, screen: Screen, sitting: Sitting) -> None:
        self.screen, self.sitting = screen, sitting

    def run(self) -> None:
        """Ask until all is asked, or the learner leaves."""
        n = len(self.sitting.questions)
        self.screen.say(
            f"{n} question{'' if n == 1 else 's'}. Answer first, aloud or on paper; then type. "
            f"Keys: h hint, {KEYS}."
        )
        interrupted = False
        try:
            while (question := self.sitting.current) is not None:
                if not self._one(question):
                    break
                self.sitting.next()
        except Stopped as stopped:
            interrupted = stopped.interrupted
        self._summary()
        if interrupted:
            raise typer.Exit(130)

    def _one(self, question: Question) -> bool:
        """One question; False to leave the quiz."""
        from llmlab.check.present import ask
        from llmlab.check.question import ProseQuestion

        asked = ask(question, self.sitting.student)
        number = f"{self.sitting.place + 1} of {len(self.sitting.questions)}"
        self.screen.rule(f"{number} · {question.topic} · {question.level} · {question.id}")
        self.screen.question(asked)
        if isinstance(question, ProseQuestion):
            return self._prose(question)
        return self._choice(question, asked.how)

    # -- letters and numbers -----------------------------------------------------------------

    def _choice(self, question: Question, how: str) -> bool:
        from llmlab.check.checker import hints_of

        keys = f"h hint, {KEYS}" if hints_of(question, self.sitting.student) else KEYS
        self.screen.say(f"{how} ({keys})", style="dim")
        given = self._read(question, "Answer: ")
        if given is None:
            return False
        if not given:
            return True
        # Kept before anything else is asked, shown after: a confidence that knows the result
        # is none.
        result = self.sitting.answer(question, given)
        feel = partial(self.sitting.feel, question)
        self.screen.feel(feel, notes=question.level in ("L3", "L4"))
        self.screen.result(result)
        while result.state not in ("correct", "error"):
            given = self._read(question, "Try again, or Enter for the answer: ", empty=True)
            if given is None:
                return False
            if not given:
                break
            result = self.sitting.answer(question, given)
            self.screen.result(result)
        return self._reveal(question, knows=result.state == "correct")

    def _read(self, question: Question, prompt: str, empty: bool = False) -> str | None:
        """An answer that can be read; "" to go on without one, None to quit."""
        while True:
            given = self.screen.read(prompt)
            word = given.lower()
            if word in QUIT:
                return None
            if word in SKIP:
                return ""
            if word in ("h", "hint"):
                self.screen.say(self.sitting.hint(question), indent=2)
            elif not given:
                if empty:
                    return ""
            elif trouble := self.sitting.misread(question, given):
                self.screen.say(trouble, indent=2)
            else:
                return given

    # -- words -------------------------------------------------------------------------------

    def _prose(self, question: ProseQuestion) -> bool:
        from llmlab.check.present import reveal

        self.screen.say("Your answer, an empty line to end. Nothing at all skips.", style="dim")
        commitment = self.screen.committed(partial(self.sitting.commit, question))
        if isinstance(commitment, str):
            return commitment == "skip"
        self.screen.feel(partial(self.sitting.feel, question), notes=True)
        shown = reveal(question, self.sitting.student)
        self.screen.short(shown)
        self.screen.self_score(commitment, partial(self.sitting.score, commitment))
        return self._full(shown.full)

    # -- what comes after --------------------------------------------------------------------

    def _reveal(self, question: Question, knows: bool) -> bool:
        from llmlab.check.present import reveal

        shown = reveal(question, self.sitting.student)
        self.screen.out.print()
        self.screen.short(shown, knows)
        return self._full(shown.full)

    def _full(self, text: str) -> bool:
        given = self.screen.read("f full answer, Enter for the next question, q quit: ").lower()
        if given in ("f", "full"):
            self.screen.item("Full", text, indent=0)
            given = self.screen.read("Enter for the next question, q quit: ").lower()
        return given not in QUIT

    def _summary(self) -> None:
        done = self.sitting.done
        right = len(done) - len(self.sitting.missed)
        self.screen.rule("Your quiz")
        kept = self.sitting.store.trouble or "All answers are kept."
        if not done:
            self.screen.say("No question was answered.")
            return
        self.screen.say(f"{right} of {len(done)} right at the first try. {kept}")
        if self.sitting.missed:
            self.screen.say("Missed, and back first (FSRS): " + ", ".join(self.sitting.missed))

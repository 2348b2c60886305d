"""The quiz in a notebook: answer, say how sure you are, see the result, then the answers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from html import escape
from typing import Any

from llmlab.check.library import find_question
from llmlab.check.present import ask, reveal
from llmlab.check.prose import Commitment
from llmlab.check.question import ProseQuestion, Question
from llmlab.check.quiz import Sitting, select, whole_bank
from llmlab.check.spacing import CONFIDENCE, RULE
from llmlab.check.store import default_store
from llmlab.check.student import current_student
from llmlab.viz.palette import INK
from llmlab.viz.panels.controls import (
    TEXT,
    button,
    prompts_shown,
    wrapping,
)
from llmlab.viz.panels.panel import Panel
from llmlab.viz.panels.question_html import question_html
from llmlab.viz.panels.quiz_inputs import CSS, Input, make_input
from llmlab.viz.show import Shown
from llmlab.viz.widgets import toolkit

REFLECT = ("L3", "L4")


class QuizPanel(Panel):
    """Questions by topic (or curriculum id), level and role; what was missed comes back sooner.

    ids: these questions instead, in this order.
    """

    def __init__(
        self,
        topic: str | None = None,
        level: str | None = None,
        role: str | None = None,
        count: int = 10,
        seed: int = 0,
        *,
        ids: Sequence[str] = (),
    ) -> None:
        store = default_store()
        chosen = [find_question(name) for name in ids] or select(
            whole_bank(), store, topic=topic, level=level, role=role, count=count, seed=seed
        )
        self.sitting = Sitting(chosen, store, current_student())
        self.sure = ""
        self._build()
        self._show()

    def _build(self) -> None:
        w = toolkit()
        self.head, self.prompt, self.answers = w.HTML(), w.HTML(), w.HTML()
        self.status = w.HTML()
        self.status.add_class("llmlab-quiz-status")
        self.place = w.VBox()
        self.sure_buttons = {
            level: self._button(level, f"sure-{number}", partial(self.say_sure, level))
            for number, level in enumerate(CONFIDENCE, 1)
        }
        label = w.HTML(f'<span style="color:{INK}">How sure are you?</span>')
        self.sure_row = wrapping(label, *self.sure_buttons.values())
        self.assumes = self._note("Assumption", "that could change your answer")
        self.revise = self._note("Observation", "that would make you revise it")
        self.notes = w.VBox([self.assumes, self.revise])
        self.check_button = self._button("Check", "check", self._check, "primary")
        self.hint_button = self._button("Hint", "hint", self._hint)
        self.short_button = self._button("Short answer", "short", self._short)
        self.full_button = self._button("Full answer", "full", self._full)
        self.next_button = self._button("Next question", "next", self._next)
        self.answering = (
            self.check_button,
            self.hint_button,
            self.short_button,
            self.full_button,
        )
        self.widget = w.VBox(
            [
                w.HTML(CSS),
                self.head,
                self.prompt,
                self.place,
                self.sure_row,
                self.notes,
                wrapping(*self.answering, self.next_button),
                self.status,
                self.answers,
            ]
        )
        self.widget.add_class("llmlab-quiz")

    @staticmethod
    def _note(label: str, placeholder: str) -> Any:
        box = toolkit().Text(placeholder=placeholder, description=label, continuous_update=False)
        box.layout.width = "min(620px, calc(100% - 8px))"
        return box

    def _button(self, text: str, name: str, action: Any, style: str = "") -> Any:
        made = button(text, f"quiz-{name}", style)
        self._on_click(action, made)
        return made

    def say_sure(self, level: str) -> None:
        """Choose a confidence ("" for none); the chosen button carries a sign, not only colour."""
        self.sure = level
        for name, one in self.sure_buttons.items():
            one.description = f"✓ {name}" if name == level else name

    # -- one question ------------------------------------------------------------------------

    def _show(self) -> None:
        """Put the current question, or the end, on the screen."""
        self.commitment: Commitment | None = None
        self.answers.value = ""
        self.assumes.value = self.revise.value = ""
        self.say_sure("")
        question = self.sitting.current
        if question is None:
            self._end()
            return
        asked = ask(question, self.sitting.student)
        number = f"{self.sitting.place + 1} of {len(self.sitting.questions)}"
        self.head.value = (
            f'<h4 style="color:{INK};margin:6px 0">{number} · {escape(str(question.topic))} · '
            f"{question.level} · {escape(question.id)}</h4>"
        )
        self.prompt.value = question_html(asked)
        self.input: Input = make_input(question, asked)
        self.place.children = (self.input.widget,)
        words = isinstance(question, ProseQuestion)
        self.notes.layout.display = "" if words or question.level in REFLECT else "none"
        self.check_button.description = "Commit" if words else "Check"
        self.check_button.disabled = False
        self.hint_button.layout.display = "none" if words else ""
        self.short_button.disabled = self.full_button.disabled = True
        self._say("info", "not answered yet")

    def _end(self) -> None:
        done, missed = self.sitting.done, self.sitting.missed
        self.head.value = f'<h4 style="color:{INK};margin:6px 0">Your quiz</h4>'
        self.place.children = ()
        lines = [f"{len(done) - len(missed)} of {len(done)} right at the first try."]
        if not done:
            lines = ["No question was answered. Run the cell again to see them once more."]
        if missed:
            lines.append(f"Missed, and back first by {RULE}: {', '.join(missed)}.")
        self.prompt.value = "".join(f'<div style="{TEXT}">{escape(x)}</div>' for x in lines)
        self.sure_row.layout.display = self.notes.layout.display = "none"
        for one in self.answering:
            one.layout.display = "none"
        self.next_button.disabled = True
        trouble = self.sitting.store.trouble
        done_text = f"done; {trouble}" if trouble else "done; every answer is kept"
        self._say("error" if trouble else "ok", done_text)

    @property
    def question(self) -> Question:
        """The question on the screen; ValueError at the end."""
        found = self.sitting.current
        if found is None:
            raise ValueError("the quiz is over; make a new QuizPanel for another")
        return found

    def _check(self) -> None:
        if self.commitment is not None:
            self._score()
            return
        question, answer = self.question, self.input.value()
        if isinstance(question, ProseQuestion):
            self._commit(question, answer)
            return
        trouble = self.sitting.misread(question, answer)
        if trouble:
            self._say("error", trouble)
            return
        result = self.sitting.answer(question, answer)
        if result.state != "not answered yet":
            self._feel(question)
            self.short_button.disabled = False
        self.status.value = f'<div style="line-height:1.4">{result._repr_html_()}</div>'

    def _feel(self, question: Question) -> None:
        if self.sure:
            self.sitting.feel(question, self.sure, self.assumes.value, self.revise.value)

    def _hint(self) -> None:
        self._say("info", self.sitting.hint(self.question))

    # -- words: first committed, then scored by their writer -----------------------------------

    def _commit(self, question: ProseQuestion, text: str) -> None:
        w = toolkit()

        if not text.strip():
            self._say("info", "not answered yet: write your answer first")
            return
        self.commitment = self.sitting.commit(question, text)
        self._feel(question)
        self.input.widget.disabled = True
        self.rubric = []
        for criterion in self.commitment.rubric:
            box = w.Checkbox(value=False, description=criterion.text, indent=False)
            box.layout.width = "100%"
            self.rubric.append(box)
        title = w.HTML(f'<div style="{TEXT}"><b>Which of these are met?</b></div>')
        self.place.children = (self.input.widget, title, *self.rubric)
        self.check_button.description = "Score"
        mark = self.commitment.sha256[:12]
        self._say("ok", f"committed, sha256 {mark}; now score yourself")
        self._short()

    def _score(self) -> None:
        commitment = self.commitment
        if commitment is None:
            return
        pairs = zip(commitment.rubric, self.rubric, strict=True)
        met = [criterion.id for criterion, box in pairs if box.value]
        score = self.sitting.score(commitment, met)
        self.check_button.disabled = True
        text = f"{len(met)} of {len(commitment.rubric)} points by your own score, {score:.0%}"
        self._say("ok", text)

    # -- answers, only when asked for ----------------------------------------------------------

    def _short(self) -> None:
        found = reveal(self.question, self.sitting.student)
        lines = "".join(f"<li>{escape(line)}</li>" for line in found.answer)
        self.answers.value = (
            f'<div style="{TEXT}"><b>Short answer.</b> {escape(found.short)}'
            f'<ul style="list-style:none;padding-left:12px;margin:4px 0">{lines}</ul></div>'
        )
        self.full_button.disabled = False

    def _full(self) -> None:
        found = reveal(self.question, self.sitting.student)
        full = f'<div style="{TEXT}"><b>Full answer.</b> {escape(found.full)}</div>'
        if full not in self.answers.value:
            self.answers.value += full

    def _next(self) -> None:
        self.question  # noqa: B018  (an error at the end)
        self.sitting.next()
        self._show()
        if self.sitting.current is not None:
            self.input.first.focus()

    # -- where there are no widgets ------------------------------------------------------------

    def shown(self) -> Shown:
        student = self.sitting.student
        prompts = [f"{q.id}  {ask(q, student).prompt}" for q in self.sitting.questions]
        how = 'Without widgets: check("ID", answer), or llmlab quiz in a terminal.'
        return prompts_shown(self.widget, prompts, how)

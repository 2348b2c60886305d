"""Answers in words inside a notebook: the text is kept first, then its rubric is shown."""

from __future__ import annotations

from collections.abc import Collection
from html import escape
from typing import Any

from llmlab.check.library import find_question
from llmlab.check.present import reveal
from llmlab.check.prose import Commitment, commit, digest, self_score
from llmlab.check.question import ProseQuestion
from llmlab.check.result import Result, State
from llmlab.check.store import Store, default_store
from llmlab.check.student import Student, current_student
from llmlab.viz.show import Shown, table_html, table_text

HEAD = ["criterion", "what it asks", "points"]


class Written(Shown):
    """A committed text with its rubric and the sample answer."""

    def __init__(self, commitment: Commitment, sample: str) -> None:
        rows = [[c.id, c.text, f"{float(c.points):g}"] for c in commitment.rubric]
        caption = f"Your text is kept ({commitment.sha256[:6]}). Now score it by its rubric."
        self.commitment = commitment
        good = f"<p><b>One good answer:</b> {escape(sample)}</p>"
        super().__init__(
            None,
            lambda: table_html(caption, HEAD, rows) + good,
            lambda: table_text(caption, HEAD, rows) + f"\n\nOne good answer: {sample}",
        )


def _question(question_id: str) -> ProseQuestion:
    question = find_question(question_id)
    if not isinstance(question, ProseQuestion):
        raise ValueError(f"question {question_id!r}: must be one that is answered in words")
    return question


def write(
    question_id: str,
    text: Any,
    *,
    store: Store | None = None,
    student: Student | None = None,
) -> Result | Written:
    """Keep the text, and only then show the rubric; `...` or blank is "not answered yet".

    The same text again is kept once. A changed text is kept beside the one before it.
    """
    question = _question(question_id)
    if text is None or text is ... or (isinstance(text, str) and not text.strip()):
        return Result(question_id, "not answered yet", "Write it first; then comes the rubric.")
    if not isinstance(text, str):
        return Result(question_id, "error", "Give your answer as text, between quotes.")
    store = store if store is not None else default_store()
    kept = [event.data.get("sha256") for event in store.events("prose", question_id)]
    if kept and kept[-1] == digest(text):
        commitment = Commitment(question, text, digest(text))
    else:
        commitment = commit(question, text, store, student or current_student())
    return Written(commitment, " ".join(reveal(question).short.split()))


def score(
    written: Result | Written,
    met: Any,
    *,
    store: Store | None = None,
    student: Student | None = None,
) -> Result:
    """Record which criteria the writer says are met: self points, kept apart from all others."""
    if isinstance(written, Result):
        return Result(written.item_id, "not answered yet", "Write the text first.")
    name = written.commitment.question.id
    if met is None or met is ...:
        return Result(name, "not answered yet", "Which criteria does your text meet?")
    if isinstance(met, str) or not isinstance(met, Collection):
        return Result(name, "error", "Give a list of criteria, such as ['result', 'check'].")
    store = store if store is not None else default_store()
    try:
        share = self_score(written.commitment, met, store, student or current_student())
    except ValueError as error:
        return Result(name, "error", str(error))
    state: State = "correct" if share == 1 else "partial" if share else "incorrect"
    return Result(name, state, f"You give yourself {100 * share:.0f} % (self points).", score=share)

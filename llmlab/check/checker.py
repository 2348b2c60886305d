"""What a lab's cell calls: `check`, `hint`, `progress`. Nothing here raises into a notebook."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmlab.check import library
from llmlab.check.answer import raw
from llmlab.check.choose import as_item, judge_question, kept_answer
from llmlab.check.judge import judge
from llmlab.check.progress import Progress
from llmlab.check.question import NumericQuestion, Question
from llmlab.check.result import Result, unchecked
from llmlab.check.store import Store, default_store
from llmlab.check.student import Student, current_student
from llmlab.check.worksheet import Item


def _find(name: str) -> Item | Question:
    """A worksheet item, or else a question of the bank."""
    every = library.items()
    if name in every:  # also where a file of questions is broken
        return every[name]
    return library.by_name("item", name, {**every, **library.questions()})


def check(
    item_id: str, answer: Any, *, store: Store | None = None, student: Student | None = None
) -> Result:
    """Check one answer, to a worksheet item or a question, and remember the attempt.

    `answer` is taken as it is now: a number in the item's unit, text with a unit ("0.4 s"), or a
    letter. The result never shows the expected value; further wrong answers bring hints.
    """
    try:
        found = _find(item_id)
    except ValueError as error:
        return Result(str(item_id)[:80], "error", str(error))
    try:
        student = student or current_student()
        store = store if store is not None else default_store()
        if isinstance(found, Item):
            result, kept = judge(found, answer, student), raw(answer)
        else:
            result = judge_question(found, answer, student)
            kept = kept_answer(found, answer, student)
        if result.state == "not answered yet":
            return result
        if result.state in ("incorrect", "partial"):
            hints = hints_of(found, student)
            wrong = store.wrong_attempts(found.id)
            if hints and wrong:  # the first wrong answer gets its message alone
                result = replace(result, hint=hints[min(wrong, len(hints)) - 1])
        store.record(found.id, kept, result, student)
    except Exception:
        return unchecked(found.id)
    return result


def last_answer(
    item_id: str, *, store: Store | None = None, student: Student | None = None
) -> tuple[Any, Result] | None:
    """The last recorded answer to a worksheet item and what is to be said of it; None without one.

    Judged anew and recorded no second time, so that a form made again shows what is there.
    """
    store = store if store is not None else default_store()
    attempts = list(store.events("attempt", item_id))
    item = library.items().get(item_id)
    if not attempts or item is None:
        return None
    answer = attempts[-1].data.get("answer")
    return answer, judge(item, answer, student or current_student())


def hints_of(found: Item | Question, student: Student | None = None) -> list[str]:
    """The hints of an item or a question, with the student's numbers."""
    if isinstance(found, Item):
        return found.hints_for(student)
    if isinstance(found, NumericQuestion):
        return as_item(found).hints_for(student)
    return list(found.hints)


def hint(item_id: str, *, store: Store | None = None, student: Student | None = None) -> str:
    """The next hint of an item, each deeper than the one before; asking is recorded."""
    try:
        found = _find(item_id)
    except ValueError as error:
        return str(error)
    student = student or current_student()
    store = store if store is not None else default_store()
    hints = hints_of(found, student)
    if not hints:
        return "There is no hint for this one."
    level = min(store.hints_taken(found.id) + 1, len(hints))
    store.record_hint(found.id, level, student)
    return f"Hint {level} of {len(hints)}: {hints[level - 1]}"


def progress(*, store: Store | None = None) -> Progress:
    """Best result of every item so far; shows itself as a table."""
    return Progress.of(store if store is not None else default_store(), library.items())


def record_code(
    exercise: str, passed: bool, *, store: Store | None = None, student: Student | None = None
) -> None:
    """Remember whether a code exercise passed here. Advisory: grading never runs code."""
    store = store if store is not None else default_store()
    data = {"passed": bool(passed), "advisory": True}
    store.add("code", exercise, data, student or current_student())

"""What a lab's cell calls: `check`, `hint`, `progress`. Nothing here raises into a notebook."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmlab.check import library
from llmlab.check.answer import raw
from llmlab.check.judge import judge
from llmlab.check.progress import Progress
from llmlab.check.result import Result
from llmlab.check.store import Store, default_store
from llmlab.check.student import Student, current_student


def check(
    item_id: str, answer: Any, *, store: Store | None = None, student: Student | None = None
) -> Result:
    """Check one answer and remember the attempt.

    `answer` is taken as it is now: a number in the item's unit, or text with a unit ("0.4 s").
    The result never shows the expected value; a wrong answer brings the next hint.
    """
    try:
        item = library.find_item(item_id)
    except ValueError as error:
        return Result(str(item_id)[:80], "error", str(error))
    try:
        student = student or current_student()
        store = store if store is not None else default_store()
        result = judge(item, answer, student)
        if result.state == "not answered yet":
            return result
        if result.state in ("incorrect", "partial"):
            hints = item.hints_for(student)
            wrong = store.wrong_attempts(item.id)
            if hints and wrong:  # the first wrong answer gets its message alone
                result = replace(result, hint=hints[min(wrong, len(hints)) - 1])
        store.record(item.id, raw(answer), result, student)
    except Exception:
        return Result(item.id, "error", "This could not be checked; nothing was counted.")
    return result


def hint(item_id: str, *, store: Store | None = None, student: Student | None = None) -> str:
    """The next hint of an item, each deeper than the one before; asking is recorded."""
    try:
        item = library.find_item(item_id)
    except ValueError as error:
        return str(error)
    student = student or current_student()
    store = store if store is not None else default_store()
    hints = item.hints_for(student)
    if not hints:
        return "There is no hint for this one."
    level = min(store.hints_taken(item.id) + 1, len(hints))
    store.record_hint(item.id, level, student)
    return f"Hint {level} of {len(hints)}: {hints[level - 1]}"


def progress(*, store: Store | None = None) -> Progress:
    """Best result of every item so far; shows itself as a table."""
    return Progress.of(store if store is not None else default_store(), library.items())

"""How a learner's function is checked: on case after case; the first that goes wrong is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from llmlab.check.checker import record_code
from llmlab.check.result import Result


class Try(NamedTuple):
    """One case, as it is told; the call of the learner's function; what is wrong with its answer.

    fault: the end of a sentence, None if nothing is wrong. began: whether the call did anything
    though it returned nothing; else a first answer of None or `...` is a stub's.
    """

    told: str
    call: Callable[[], object]
    fault: Callable[[object], str | None]
    began: Callable[[], bool] = lambda: False


def check_code(exercise: str, tries: Iterable[Try], done: str) -> Result:
    """Make the tries in order. `done` is said if all are right; a stub is not answered yet."""
    for number, one in enumerate(tries):
        try:
            answer = one.call()
        except NotImplementedError:
            return not_yet(exercise)
        except Exception as error:
            said: str | None = f"raises {type(error).__name__}: {error}"
        else:
            if number == 0 and (answer is None or answer is ...) and not one.began():
                return not_yet(exercise)
            said = one.fault(answer)
        if said is not None:
            return failed(exercise, f"With {one.told} it {said}.")
    return passed(exercise, done)


def not_yet(exercise: str, message: str = "") -> Result:
    """Nothing is kept: there was no try."""
    return Result(exercise, "not answered yet", message)


def failed(exercise: str, message: str) -> Result:
    """Kept as a try that went wrong."""
    record_code(exercise, False)
    return Result(exercise, "incorrect", message)


def passed(exercise: str, message: str) -> Result:
    """Kept as solved."""
    record_code(exercise, True)
    return Result(exercise, "correct", message, score=1.0)

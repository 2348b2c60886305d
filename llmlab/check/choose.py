"""Judging a question of the bank: choices, orders, matches and numbers. Prose is in prose.py.

A message tells what was wrong with what was chosen; it never names what was not chosen.
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Sequence
from typing import Any, TypeVar

from llmlab.check.answer import is_blank, raw
from llmlab.check.item import Draws
from llmlab.check.judge import judge_numeric
from llmlab.check.question import (
    FlawQuestion,
    MatchQuestion,
    MultipleQuestion,
    NumericQuestion,
    Option,
    OrderQuestion,
    ProseQuestion,
    Question,
    SingleQuestion,
    Step,
    TraceQuestion,
)
from llmlab.check.result import Result, State, refused, unchecked
from llmlab.check.student import CURRICULUM, Student
from llmlab.check.worksheet import Item, Shared

T = TypeVar("T")
ChoiceQuestion = SingleQuestion | MultipleQuestion | FlawQuestion | TraceQuestion
LETTERS = string.ascii_lowercase


class UnreadableAnswer(ValueError):
    """An answer of the wrong form; the text says what is expected."""


def as_item(question: NumericQuestion) -> Item:
    """A numeric question as an item, so that its numbers are drawn like a worksheet's."""
    return Item(question, Shared(question.id, Draws()))


def shuffled(parts: Sequence[T], question: Question, student: Student | None) -> list[T]:
    """The parts in an order that only the question and the student's name decide."""
    name = (student or CURRICULUM).name

    def key(numbered: tuple[int, T]) -> bytes:
        return hashlib.sha256(f"{question.id}|{name}|{numbered[0]}".encode()).digest()

    return [part for _, part in sorted(enumerate(parts), key=key)]


def options_for(question: ChoiceQuestion, student: Student | None = None) -> list[Option]:
    """The options as this student sees them; the first is "a"."""
    return shuffled(question.options, question, student)


def steps_for(question: OrderQuestion, student: Student | None = None) -> list[Step]:
    """The steps as this student sees them, out of order; the first is "a"."""
    shown = shuffled(question.steps, question, student)
    return shown if shown != question.steps else [*shown[1:], shown[0]]


def rights_for(question: MatchQuestion, student: Student | None = None) -> list[tuple[str, str]]:
    """The right sides as (id, text) as this student sees them; the first is "a"."""
    return [(p.id, p.right) for p in shuffled(question.pairs, question, student)]


def prompt_for(question: Question, student: Student | None = None) -> str:
    """The question's text, with the student's numbers where it has any."""
    if isinstance(question, NumericQuestion):
        return as_item(question).prompt_for(student)
    return question.prompt


def _named(word: Any, shown: Sequence[tuple[str, str]]) -> str:
    """The id meant by a letter, an id or a full text."""
    given = str(word).strip()
    lowered = given.lower().rstrip(".)")
    if lowered in LETTERS[: len(shown)] and len(lowered) == 1:
        return shown[LETTERS.index(lowered)][0]
    for name, text in shown:
        if given in (name, text):
            return name
    letters = f"{LETTERS[0]} to {LETTERS[len(shown) - 1]}"
    raise UnreadableAnswer(f"{given[:40]!r} is none of the choices; answer with {letters}")


def _listed(answer: Any) -> list[Any]:
    if isinstance(answer, str):
        parts = answer.replace(">", ",").replace(";", ",")
        if "," in parts:
            return [p for p in parts.split(",") if p.strip()]
        words = parts.split()
        return words if all(len(w) == 1 for w in words) else [answer]
    if isinstance(answer, (list, tuple, set, frozenset)):
        return list(answer)
    return [answer]


def normal(question: Question, answer: Any, student: Student | None = None) -> Any:
    """The answer by ids, so that it can be kept and judged again; UnreadableAnswer if it has
    another form. Numbers and prose stay as they are.
    """
    if isinstance(question, (NumericQuestion, ProseQuestion)):
        return answer
    if isinstance(question, OrderQuestion):
        steps = [(s.id, s.text) for s in steps_for(question, student)]
        order = [_named(word, steps) for word in _listed(answer)]
        if sorted(order) != sorted(s.id for s in question.steps):
            raise UnreadableAnswer(f"name each of the {len(steps)} steps once, in order")
        return order
    if isinstance(question, MatchQuestion):
        rights = rights_for(question, student)
        if isinstance(answer, dict):
            lefts = [(p.id, p.left) for p in question.pairs]
            return {_left(key, lefts): _named(value, rights) for key, value in answer.items()}
        chosen = _listed(answer)
        if len(chosen) != len(question.pairs):
            raise UnreadableAnswer(f"name one letter for each of the {len(rights)} left sides")
        return {p.id: _named(word, rights) for p, word in zip(question.pairs, chosen, strict=True)}
    shown = [(o.id, o.text) for o in options_for(question, student)]
    picked = sorted({_named(word, shown) for word in _listed(answer)})
    if len(picked) != 1 and isinstance(question, SingleQuestion):
        raise UnreadableAnswer("choose exactly one")
    return picked


def kept_answer(question: Question, answer: Any, student: Student | None = None) -> Any:
    """The answer as plain JSON for the progress file: by ids, whatever order was shown."""
    try:
        return raw(normal(question, answer, student))
    except UnreadableAnswer:
        return raw(answer)


def _left(key: Any, lefts: Sequence[tuple[str, str]]) -> str:
    for number, (name, text) in enumerate(lefts, 1):
        if str(key).strip() in (name, text, str(number)):
            return name
    raise UnreadableAnswer(f"{str(key)[:40]!r} is none of the left sides")


def judge_question(question: Question, answer: Any, student: Student | None = None) -> Result:
    """The result of an answer; raises nothing. A prose answer is never scored here."""
    try:
        if is_blank(answer) or (isinstance(answer, (list, dict, tuple, set)) and not answer):
            return Result(question.id, "not answered yet", "")
        if isinstance(question, NumericQuestion):
            item = as_item(question)
            return judge_numeric(question, answer, item.parameters_for(student), item)
        if isinstance(question, ProseQuestion):
            return Result(question.id, "error", "Words are committed first, then scored by rubric.")
        chosen = normal(question, answer, student)
        if isinstance(question, OrderQuestion):
            return _order(question, chosen)
        if isinstance(question, MatchQuestion):
            return _match(question, chosen)
        return _choice(question, chosen)
    except UnreadableAnswer as error:
        return refused(question.id, error)
    except Exception:
        return unchecked(question.id)


def _choice(question: ChoiceQuestion, chosen: list[str]) -> Result:
    options = {o.id: o for o in question.options}
    right = {o.id for o in question.options if o.correct}
    picked = set(chosen)
    why = " ".join(options[name].why for name in chosen if picked == right or name not in right)
    wrong = next((name for name in chosen if name not in right), None)
    if picked == right:
        return Result(question.id, "correct", why, score=1.0)
    score = max(0.0, (len(picked & right) - len(picked - right)) / len(right))
    if not question.many:
        score = 0.0
    message = why or "What you chose is right, and something is missing."
    return Result(question.id, _state(score), message, score=score, misconception=wrong)


def _state(score: float) -> State:
    return "partial" if score > 0 else "incorrect"


def _order(question: OrderQuestion, order: list[str]) -> Result:
    right = [s.id for s in question.steps]
    if order == right:
        return Result(question.id, "correct", "", score=1.0)
    place = {name: i for i, name in enumerate(order)}
    pairs = [(a, b) for i, a in enumerate(right) for b in right[i + 1 :]]
    kept = sum(place[a] < place[b] for a, b in pairs)
    # Half of the pairs are in order by chance: that earns nothing, all but one nearly all.
    score = max(0.0, 2 * kept / len(pairs) - 1)
    good = next(i for i, (a, b) in enumerate(zip(order, right, strict=True)) if a != b)
    text = f"The first {good} fit; look at what follows." if good else "The first step differs."
    return Result(question.id, _state(score), text, score=score)


def _match(question: MatchQuestion, chosen: dict[str, str]) -> Result:
    good = [p for p in question.pairs if chosen.get(p.id) == p.id]
    if len(good) == len(question.pairs) == len(chosen):
        return Result(question.id, "correct", "", score=1.0)
    score = len(good) / len(question.pairs)
    text = f"{len(good)} of {len(question.pairs)} pairs fit."
    return Result(question.id, _state(score), text, score=score)

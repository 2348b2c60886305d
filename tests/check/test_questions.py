"""The question bank: choices, orders, matches, numbers, and words with a rubric."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from llmlab.check import check, library
from llmlab.check.choose import (
    judge_question,
    kept_answer,
    normal,
    options_for,
    prompt_for,
    rights_for,
    steps_for,
)
from llmlab.check.prose import commit, digest, self_score
from llmlab.check.question import RUBRIC, Question
from llmlab.check.solution import solution
from llmlab.check.store import Store
from llmlab.check.student import CURRICULUM, Student

BASE: dict[str, Any] = {
    "id": "X.q",
    "covers": ["A1"],
    "level": "L1",
    "prompt": "?",
    "short": "s",
    "full": "f",
}
OPTIONS = [
    {"id": "a1", "text": "One", "why": "One is right.", "correct": True},
    {"id": "b2", "text": "Two", "why": "Two is right.", "correct": True},
    {"id": "c3", "text": "Three", "why": "Three is wrong."},
    {"id": "d4", "text": "Four", "why": "Four is wrong."},
]
STEPS = [{"id": s, "text": s.title()} for s in ("queue", "prefill", "decode", "finish")]
PAIRS = [{"id": s, "left": s, "right": s.title()} for s in ("ttft", "tpot", "itl")]


def make(kind: str, **more: Any) -> Question:
    made: Question = TypeAdapter(Question).validate_python({**BASE, "kind": kind, **more})
    return made


def test_each_option_of_the_checkpoint_says_why() -> None:
    checkpoint = [q for q in library.questions().values() if q.covers == ["B14"]]
    assert len(checkpoint) >= 5
    for question in checkpoint:
        for option in getattr(question, "options", []):
            result = judge_question(question, option.id)
            assert result.state == ("correct" if option.correct else "incorrect")
            assert option.why in result.message
            assert result.misconception == (None if option.correct else option.id)


def test_a_letter_means_what_this_student_sees() -> None:
    question = library.find_question("B14.completion")
    for student in (CURRICULUM, Student("Ada"), Student("Bob")):
        shown = options_for(question, student)
        letter = "abcd"[[o.correct for o in shown].index(True)]
        for answer in (letter, letter.upper(), f"{letter})", "850 ms", "all", ["all"]):
            assert judge_question(question, answer, student).state == "correct"
        assert kept_answer(question, letter, student) == ["all"]


def test_students_see_different_orders() -> None:
    question = library.find_question("B14.completion")
    orders = {tuple(o.id for o in options_for(question, Student(f"n{i}"))) for i in range(200)}
    assert len(orders) == 24


@pytest.mark.parametrize(
    ("answer", "state", "score"),
    [
        (["a1", "b2"], "correct", 1.0),
        ("a1, b2", "correct", 1.0),
        (["a1"], "partial", 0.5),
        (["a1", "b2", "c3"], "partial", 0.5),
        (["a1", "c3"], "incorrect", 0.0),
        (["c3"], "incorrect", 0.0),
        (["a1", "b2", "c3", "d4"], "incorrect", 0.0),
        ([], "not answered yet", 0.0),
        ("nothing", "error", 0.0),
    ],
)
def test_a_multiple_choice_counts_right_less_wrong(answer: Any, state: str, score: float) -> None:
    result = judge_question(make("multiple", options=OPTIONS), answer)
    assert (result.state, result.score) == (state, score)


def test_a_message_does_not_name_what_was_not_chosen() -> None:
    result = judge_question(make("multiple", options=OPTIONS), ["a1"])
    assert "Two" not in repr(result)
    assert "something is missing" in result.message


def test_an_order_earns_what_is_in_order() -> None:
    question = make("order", steps=STEPS)
    right = ["queue", "prefill", "decode", "finish"]
    assert judge_question(question, right).state == "correct"
    assert judge_question(question, " > ".join(right)).state == "correct"
    swapped = judge_question(question, ["queue", "decode", "prefill", "finish"])
    assert (swapped.state, round(swapped.score, 3)) == ("partial", 0.667)
    assert judge_question(question, right[::-1]).score == 0
    assert judge_question(question, right[:3]).state == "error"
    assert judge_question(question, ["queue"] * 4).state == "error"
    letters = {s.id: "abcd"[i] for i, s in enumerate(steps_for(question, Student("Ada")))}
    typed = "".join(letters[s] for s in right)
    assert judge_question(question, " ".join(typed), Student("Ada")).state == "correct"


def test_steps_are_never_shown_in_the_right_order() -> None:
    question = make("order", steps=STEPS[:3])
    for n in range(60):
        assert steps_for(question, Student(f"n{n}")) != question.steps  # type: ignore[union-attr]


def test_a_match_counts_pairs() -> None:
    question = make("match", pairs=PAIRS)
    assert judge_question(question, {"ttft": "Ttft", "tpot": "Tpot", "itl": "Itl"}).score == 1
    some = judge_question(question, {"ttft": "ttft", "tpot": "itl", "itl": "tpot"})
    assert (some.state, round(some.score, 3)) == ("partial", 0.333)
    assert judge_question(question, {"x": "y"}).state == "error"
    rights = [name for name, _ in rights_for(question, Student("Bob"))]
    letters = [f"{'abc'[rights.index(p['id'])]}" for p in PAIRS]
    assert judge_question(question, letters, Student("Bob")).state == "correct"


def test_a_numeric_question_draws_numbers_and_knows_wrong_answers() -> None:
    question = make(
        "numeric",
        prompt="{tokens} tokens?",
        answer="tokens - 1",
        unit="gaps",
        tolerance={"exact": True},
        parameters={"tokens": {"first": 50, "draw": [40, 60]}},
        misconceptions=[{"id": "n", "formula": "tokens", "message": "One fewer."}],
    )
    assert judge_question(question, 49).state == "correct"
    assert judge_question(question, "50 gaps").misconception == "n"
    assert prompt_for(question, Student("Ada")) in ("40 tokens?", "60 tokens?")


@pytest.mark.parametrize("kind", ["single", "multiple", "order", "match"])
@pytest.mark.parametrize("answer", [None, 3, [[1]], {"a": {}}, object(), "x" * 9999, [None], b"a"])
def test_any_answer_gives_a_result(kind: str, answer: Any) -> None:
    more = {"order": {"steps": STEPS}, "match": {"pairs": PAIRS}}
    options = {"options": OPTIONS[1:]}
    question = make(kind, **more.get(kind, options))
    assert judge_question(question, answer).state in ("error", "not answered yet")


def test_an_answer_kept_is_judged_the_same_again() -> None:
    for question in library.questions().values():
        if question.kind == "prose":
            continue
        right = solution(question.id, CURRICULUM)
        kept = kept_answer(question, right)
        assert judge_question(question, kept).state == "correct"
        assert kept_answer(question, kept) == kept
        if question.kind != "numeric":
            assert normal(question, kept, Student("Ada")) == kept


def test_questions_can_be_checked_in_a_lab_and_are_recorded(store: Store) -> None:
    assert check("B14.completion", "850 ms", store=store).state == "correct"
    assert [e.data["answer"] for e in store.events("attempt")] == [["all"]]


def test_prose_is_committed_before_its_rubric_and_scored_apart(store: Store) -> None:
    question = make("prose")
    ada = Student("Ada")
    text = "The decode steps wait for the prompt chunk."
    committed = commit(question, text, store, ada)  # type: ignore[arg-type]
    assert [c.id for c in committed.rubric] == [c.id for c in RUBRIC]
    assert self_score(committed, ["result", "reasoning", "check"], store, ada) == 0.75
    prose, own = store.events()
    assert prose.data == {"text": text, "sha256": digest(text)}
    assert own.data["met"] == ["check", "reasoning", "result"]
    with pytest.raises(ValueError, match="charm"):
        self_score(committed, ["charm"], store, ada)


@pytest.mark.parametrize("text", ["", "  \n", "x" * 30_000])
def test_prose_that_is_empty_or_endless_is_not_committed(text: str, store: Store) -> None:
    with pytest.raises(ValueError, match="answer"):
        commit(make("prose"), text, store, CURRICULUM)  # type: ignore[arg-type]
    assert list(store.events()) == []


def test_equal_prose_has_one_hash_whatever_its_line_ends() -> None:
    assert digest("a b\r\nc") == digest("a  b\nc ")
    assert digest("a b c") != digest("a b d")


def test_prose_is_never_scored_by_the_checker() -> None:
    result = judge_question(make("prose"), "words")
    assert result.state == "error"
    assert result.score == 0

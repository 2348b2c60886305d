"""A quiz is decided by its seed and by what was missed; a sitting keeps every answer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmlab.check import library
from llmlab.check.question import ProseQuestion
from llmlab.check.quiz import Sitting, listing, matching, select, topics, whole_bank
from llmlab.check.spacing import schedule
from llmlab.check.store import Event, Store
from llmlab.check.student import Student
from tests.every import every

BANK = whole_bank()
NAMES = [q.id for q in BANK]
START = datetime(2026, 1, 5, 12, tzinfo=UTC)
STATES = ("correct", "partial", "incorrect")


def attempt(name: str, state: str, when: datetime, hints: int = 0) -> Event:
    data = {"state": state, "hints": hints}
    return Event(f"{name}{when}", when.isoformat(), "attempt", name, "", data)


def kept(*events: Event) -> Store:
    store = Store(None)
    store._insert(events)
    return store


# -- selection -------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(1, 120))
@settings(max_examples=30, deadline=None)
def test_the_same_seed_gives_the_same_quiz(seed, count):
    store = Store(None)
    once = [q.id for q in select(BANK, store, seed=seed, count=count, now=START)]
    again = [q.id for q in select(BANK[::-1], store, seed=seed, count=count, now=START)]
    assert once == again
    assert len(set(once)) == len(once) == min(count, len(BANK))
    store.close()


def test_other_seeds_give_other_orders(store):
    orders = {tuple(q.id for q in select(BANK, store, seed=s, now=START)) for s in range(20)}
    assert len(orders) == 20


@every(product(topics(BANK), ["inference", "product", None]))
def test_topic_level_and_role_are_kept_or_refused_in_words(topic, role):
    there = any(q.topic == topic and (role is None or role in q.roles) for q in BANK)
    if not there:
        with pytest.raises(ValueError, match="leave one"):
            matching(BANK, topic=topic, role=role)
        return
    found = matching(BANK, topic=topic, role=role)
    assert all(q.topic == topic and (role is None or role in q.roles) for q in found)


def test_a_curriculum_id_is_a_topic_too():
    assert all("B5" in q.covers for q in matching(BANK, topic="b5"))


@pytest.mark.parametrize(
    ("wanted", "told"),
    [({"topic": "tea"}, "traces"), ({"level": "L9"}, "L1, L2"), ({"role": "chef"}, "inference")],
)
def test_what_does_not_exist_is_refused_with_what_does(wanted, told):
    with pytest.raises(ValueError, match=told):
        matching(BANK, **wanted)


# -- spacing ---------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.sampled_from(STATES), st.integers(15, 60 * 24 * 20)), min_size=0, max_size=6
    )
)
@settings(max_examples=60, deadline=None)
def test_missed_comes_back_sooner_than_right_whatever_came_before(history):
    when, events = START, []
    for state, minutes in history:
        events.append(attempt("A.q", state, when))
        when += timedelta(minutes=minutes)
    dues = {
        state: schedule([*events, attempt("A.q", state, when)], ["A.q"])["A.q"].when
        for state in STATES
    }
    assert when < dues["incorrect"] <= dues["partial"] <= dues["correct"]
    assert dues["incorrect"] < dues["correct"]


def test_due_questions_come_before_new_ones_and_new_before_those_not_due():
    now = START + timedelta(hours=1)
    missed, right = NAMES[:2]
    store = kept(attempt(missed, "incorrect", START), attempt(right, "correct", START))
    order = [q.id for q in select(BANK, store, count=len(BANK), now=now)]
    assert order[0] == missed
    assert order[-1] == right


def test_a_right_answer_after_the_message_of_a_wrong_one_is_no_proof_of_memory():
    soon = START + timedelta(minutes=1)
    first = [attempt("A.q", "incorrect", START)]
    both = [*first, attempt("A.q", "correct", soon)]
    assert schedule(both, ["A.q"]) == schedule(first, ["A.q"])


def test_help_and_guessing_bring_a_question_back_sooner():
    plain = schedule([attempt("A.q", "correct", START)], ["A.q"])["A.q"].when
    helped = schedule([attempt("A.q", "correct", START, hints=1)], ["A.q"])["A.q"].when
    unsure = Event("c", START.isoformat(), "confidence", "A.q", "", {"level": "not yet"})
    guessed = schedule([attempt("A.q", "correct", START), unsure], ["A.q"])["A.q"].when
    assert helped < plain
    assert guessed < plain


def test_damaged_events_change_nothing():
    good = attempt("A.q", "correct", START)
    odd = [
        Event("x", "yesterday", "attempt", "A.q", "", {"state": "correct"}),
        Event("y", START.isoformat(), "attempt", "A.q", "", {"state": 7}),
        Event("z", START.isoformat(), "self", "A.q", "", {"score": "good"}),
    ]
    assert schedule([*odd, good], ["A.q"]) == schedule([good], ["A.q"])


# -- a sitting ---------------------------------------------------------------------------------


def sitting(*names: str) -> Sitting:
    return Sitting([library.find_question(n) for n in names], Store(None), Student())


def test_every_try_is_kept_and_the_first_one_counts():
    here = sitting("A0.order", "B5.choose")
    question = here.next()
    assert question is not None
    assert here.answer(question, "larger").state == "incorrect"
    assert here.answer(question, "chunks").state == "correct"
    assert here.done["B5.choose"].tries == 2
    assert here.missed == ["B5.choose"]
    states = [e.data["state"] for e in here.store.events("attempt")]
    assert states == ["incorrect", "correct"]


def test_what_cannot_be_read_is_told_and_not_kept():
    here = sitting("B5.choose")
    assert "a to d" in here.misread(here.questions[0], "z")
    assert here.misread(here.questions[0], "a") == ""
    assert list(here.store.events()) == []


def test_confidence_is_kept_with_its_assumption_and_observation():
    here = sitting("B5.choose")
    here.answer(here.questions[0], "chunks")
    here.feel(here.questions[0], "confident", "limits are p95", "a chat gap over 50 ms")
    (event,) = here.store.events("confidence")
    assert event.data == {
        "level": "confident",
        "assumption": "limits are p95",
        "observation": "a chat gap over 50 ms",
    }
    assert here.done["B5.choose"].confidence == "confident"
    with pytest.raises(ValueError, match="getting there"):
        here.feel(here.questions[0], "sure")


def test_words_are_committed_before_there_is_a_rubric_to_score_by():
    here = sitting("A7.l1")
    question = here.questions[0]
    assert isinstance(question, ProseQuestion)
    commitment = here.commit(question, "TPOT, because a long answer is mostly gaps.")
    (event,) = here.store.events("prose")
    assert event.data["sha256"] == commitment.sha256
    assert here.score(commitment, ["result", "reasoning"]) == 0.5
    assert here.missed == ["A7.l1"]


def test_a_listing_says_what_is_due_and_gives_no_answer_away():
    store = kept(attempt("B5.choose", "incorrect", START))
    row = listing([library.find_question("B5.choose")], store)[0]
    assert row["missed"] is True
    assert row["due"] > START.isoformat()
    assert not {"options", "short", "full", "answer", "correct"} & set(row)

"""A mock interview climbs by the scores, keeps to its time, and reports what to redo."""

from __future__ import annotations

from datetime import datetime
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmlab.check import interview as module
from llmlab.check.interview import CLIMB, ESTIMATE, OPENING, WRONG, Interview, Turn
from llmlab.check.interview_report import calibration, html, markdown, redo, report_data, verdict
from llmlab.check.question import ProseQuestion
from llmlab.check.quiz import LEVELS, whole_bank
from llmlab.check.store import Store
from llmlab.check.student import Student

BANK = whole_bank()
NOW = datetime(2026, 3, 1, 9, 30)


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def held(minutes: float = 60, role: str = "inference", seed: int = 0, name: str = ""):
    clock = Clock()
    return clock, Interview(
        BANK, role, minutes, store=Store(None), student=Student(name), clock=clock, seed=seed
    )


def give(interview: Interview, turn: Turn, good: bool, text: str = "Because of the step.") -> None:
    """Answer a turn fully right or fully wrong."""
    question = turn.question
    if isinstance(question, ProseQuestion):
        commitment = interview.commit(turn, text)
        interview.score(turn, commitment, [c.id for c in commitment.rubric] if good else [])
    elif not good:
        interview.skip(turn)
    elif question.kind == "numeric":
        from llmlab.check.choose import as_item
        from llmlab.check.worksheet import right_value

        values = as_item(question).parameters_for(interview.sitting.student)
        interview.answer(turn, float(right_value(question, values)))
    elif question.kind == "match":
        interview.answer(turn, {p.id: p.right for p in question.pairs})
    else:
        interview.answer(turn, [o.id for o in question.options if o.correct])


def run(interview: Interview, clock: Clock, good, seconds: float = 60) -> list[Turn]:
    while (turn := interview.next()) is not None:
        clock.now += seconds
        give(interview, turn, good(len(interview.turns)))
    return interview.turns


# -- what is asked ---------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["inference", "product"])
def test_it_opens_then_mixes_follow_ups_a_wrong_answer_and_estimates(role):
    clock, interview = held(role=role)
    turns = run(interview, clock, lambda n: True)
    parts = [t.part for t in turns]
    assert parts[0] == OPENING
    assert parts.count(OPENING) == 1
    assert parts[:4].count(WRONG) == 1
    assert parts[:4].count(ESTIMATE) >= 1
    assert all(role in t.question.roles for t in turns)
    assert len({t.question.id for t in turns}) == len(turns)


@given(st.lists(st.booleans(), min_size=13, max_size=13), st.integers(0, 100))
@settings(max_examples=15, deadline=None)
def test_follow_ups_climb_with_success_and_come_down_with_failure(outcomes, seed):
    clock, interview = held(minutes=24, seed=seed)
    turns = run(interview, clock, lambda n: outcomes[n])
    level = None
    for turn in turns:
        if turn.part == OPENING:
            level = 0 if turn.score < module.UP else 1
        if turn.part == CLIMB:
            assert turn.question.level == LEVELS[level], "each level has questions enough"
            level = min(3, level + 1) if turn.score >= module.UP else max(0, level - 1)


def test_somebody_who_knows_all_reaches_l4_and_one_who_knows_nothing_stays_at_l1():
    clock, interview = held()
    best = [t.question.level for t in run(interview, clock, lambda n: True) if t.part == CLIMB]
    assert best[:3] == ["L2", "L3", "L4"]
    clock, interview = held(minutes=24)
    worst = [t.question.level for t in run(interview, clock, lambda n: False) if t.part == CLIMB]
    assert set(worst) == {"L1"}


def test_the_seed_decides_what_is_asked():
    asked = []
    for seed in (1, 1, 2, 3):
        clock, interview = held(seed=seed)
        asked.append([t.question.id for t in run(interview, clock, lambda n: n % 3 > 0)])
    assert asked[0] == asked[1]
    assert len({tuple(a) for a in asked}) == 3


# -- time --------------------------------------------------------------------------------------


def test_nothing_is_asked_after_the_time_and_what_runs_over_is_marked():
    clock, interview = held(minutes=10)
    turns = run(interview, clock, lambda n: True, seconds=250)
    assert [t.late for t in turns] == [False, False, True]
    assert interview.next() is None
    assert interview.left_s == 0
    assert turns[0].seconds == 250


def test_a_fast_learner_is_not_asked_for_ever():
    clock, interview = held(minutes=10)
    assert len(run(interview, clock, lambda n: True, seconds=1)) == 5


@pytest.mark.parametrize(
    ("role", "minutes", "told"),
    [("chef", 10, "inference, product"), ("product", 0, "1..180"), ("product", 1e9, "1..180")],
)
def test_bad_input_is_refused_in_words(role, minutes, told):
    with pytest.raises(ValueError, match=told):
        held(minutes=minutes, role=role)


# -- answers -----------------------------------------------------------------------------------


def test_words_are_hashed_and_kept_before_there_is_a_rubric():
    _, interview = held()
    turn = interview.next()
    commitment = interview.commit(turn, "Prefill, then decode.")
    (event,) = interview.sitting.store.events("prose")
    assert event.data["sha256"] == commitment.sha256
    assert turn.score is None
    data = report_data(interview, NOW)
    assert data["answered"] == 1
    assert data["turns"][0]["score"] is None
    assert "✗" not in html(data), "words that were not scored yet are no failure"


def test_an_answer_that_cannot_be_read_may_be_given_again():
    _, interview = held()
    while (turn := interview.next()).part != WRONG:
        give(interview, turn, good=True)
    assert interview.answer(turn, "zebra").state == "error"
    assert turn.score is None
    give(interview, turn, good=True)
    assert turn.score == 1


# -- the report --------------------------------------------------------------------------------


def test_strengths_and_gaps_are_all_that_was_scored_and_gaps_say_what_to_redo():
    clock, interview = held()
    turns = run(interview, clock, lambda n: n % 2 == 0)
    data = report_data(interview, NOW)
    assert data["answered"] == len(turns)
    assert data["score"] == pytest.approx(sum(t.score for t in turns) / len(turns))
    assert data["strengths"]
    assert data["gaps"]
    for gap in data["gaps"]:
        assert gap["redo"].startswith(("lab ", "labs ", "worksheet", "llmlab quiz"))
    prose = [t for t in turns if t.self_scored and t.score == 0]
    missing = [text for gap in data["gaps"] for text in gap["missing"]]
    assert len(missing) == 4 * len(prose)


def test_a_lab_that_teaches_the_id_is_what_to_redo():
    assert redo(["A1"]).startswith("lab")
    assert "01_two_phases" in redo(["A1"])


def test_calibration_is_the_mean_score_at_each_confidence():
    turns = []
    for level, score in [("confident", 1.0), ("confident", 0.5), ("not yet", 0.0), ("", 1.0)]:
        turn = Turn(BANK[0], CLIMB, 0.0, answer="a", score=score, confidence=level)
        turns.append(turn)
    rows = {r.level: (r.n, r.score) for r in calibration(turns)}
    assert rows == {"not yet": (1, 0.0), "getting there": (0, None), "confident": (2, 0.75)}


@pytest.mark.parametrize(
    ("pairs", "told"),
    [
        ([("confident", 1)], "Too few"),
        ([("confident", 0)] * 3, "could disprove you"),
        ([("not yet", 1)] * 3, "more than you trust"),
        ([("not yet", 0), ("getting there", 0.5), ("confident", 1)], "agree"),
        ([("not yet", 0.5), ("getting there", 0), ("confident", 0.8)], "says little"),
    ],
)
def test_the_verdict_follows_from_the_table(pairs, told):
    turns = [Turn(BANK[0], CLIMB, 0, answer="a", score=s, confidence=c) for c, s in pairs]
    assert told in verdict(calibration(turns))


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        assert not any(name.startswith("on") or name in ("src", "href") for name, _ in attrs)

    def handle_data(self, data):
        self.text += data


HOSTILE = "<script>alert(1)</script> # not a heading\n| a | b | [x](http://example.com) `code`"


def test_pages_hold_words_as_words_and_load_nothing():
    clock, interview = held(name="Ada <b>Lovelace</b>")
    while (turn := interview.next()) is not None:
        clock.now += 60
        give(interview, turn, good=True, text=HOSTILE)
        interview.feel(turn, "confident", HOSTILE, HOSTILE)
    data = report_data(interview, NOW)
    tags = Tags()
    tags.feed(html(data))
    assert "script" not in tags.seen
    assert "b" in tags.seen  # the cards' own
    assert "<b>Lovelace</b>" in tags.text
    assert "<script>alert(1)</script>" in tags.text
    page = markdown(data)
    assert "<script>" not in page.replace("\\<", "")
    assert "](" not in page.replace("\\]", "")
    assert sum(line.startswith("#") for line in page.splitlines()) == 5


def test_an_interview_without_answers_has_a_report_too():
    _, interview = held()
    data = report_data(interview, NOW)
    assert data["score"] is None
    assert "None yet" in html(data)
    assert "| confident | 0 | - |" in markdown(data)

"""Every question of the bank: exactly the right answers pass, each wrong one gets its message."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmlab.check import library, worksheet
from llmlab.check.audit import audit, curriculum
from llmlab.check.choose import as_item, judge_question, options_for, rights_for, steps_for
from llmlab.check.present import ask, reveal, said, step_table, trace_of
from llmlab.check.question import (
    FlawQuestion,
    MatchQuestion,
    MultipleQuestion,
    NumericQuestion,
    OrderQuestion,
    ProseQuestion,
    SingleQuestion,
    TraceQuestion,
)
from llmlab.check.student import Student
from llmlab.trace import Trace
from tests.every import every

BANK = library.questions()
CHOICES = [q for q in BANK.values() if hasattr(q, "options")]
ORDERS = [q for q in BANK.values() if isinstance(q, OrderQuestion)]
MATCHES = [q for q in BANK.values() if isinstance(q, MatchQuestion)]
NUMBERS = [q for q in BANK.values() if isinstance(q, NumericQuestion)]
PROSE = [q for q in BANK.values() if isinstance(q, ProseQuestion)]
TRACES = [q for q in BANK.values() if isinstance(q, TraceQuestion)]
STUDENTS = [None, Student("Ada"), Student("Grace Hopper")]


# -- what there is ---------------------------------------------------------------------------


def test_the_bank_has_every_kind_level_and_role_and_covers_the_curriculum():
    beyond = [q for q in BANK.values() if not q.id.startswith("B14.")]
    assert len(beyond) >= 60
    assert set(Counter(q.kind for q in beyond)) == {
        "numeric", "single", "multiple", "order", "match", "flaw", "trace", "prose",
    }  # fmt: skip
    for role in ("inference", "product"):
        levels = Counter(q.level for q in beyond if role in q.roles)
        assert all(levels[level] >= 5 for level in ("L1", "L2", "L3", "L4")), (role, levels)
    assert set().union(*(q.covers for q in beyond)) >= set(curriculum()) - {"B14"}
    assert audit(students=5).problems == []


def test_a_correct_option_is_not_known_by_its_length():
    """A learner who always takes the longest option must do badly."""
    one = [q for q in CHOICES if not q.many]
    longest = [q.id for q in one if max(q.options, key=lambda o: len(o.text)).correct]
    assert len(longest) <= 0.45 * len(one), longest


def test_a_correct_option_is_not_known_by_its_place():
    first = sum(options_for(q)[0].correct for q in CHOICES if isinstance(q, SingleQuestion))
    n = sum(isinstance(q, SingleQuestion) for q in CHOICES)
    assert 0.1 * n <= first <= 0.45 * n


@every(CHOICES)
def test_every_option_has_a_reason_of_its_own(question):
    reasons = [o.why for o in question.options]
    assert len(set(reasons)) == len(reasons)
    assert all(len(reason) >= 20 for reason in reasons)


# -- exactly the right answers ----------------------------------------------------------------


@every(CHOICES)
def test_exactly_the_right_set_of_options_is_correct(question):
    right = {o.id for o in question.options if o.correct}
    ids = [o.id for o in question.options]
    for size in range(1, len(ids) + 1):
        for picked in itertools.combinations(ids, size):
            result = judge_question(question, list(picked))
            assert (result.state == "correct") == (set(picked) == right), picked
            assert (result.score == 1) == (set(picked) == right)


@every(CHOICES)
def test_each_wrong_option_gives_its_own_message_and_no_other(question):
    for student in STUDENTS:
        for letter, option in zip("abcdefghij", options_for(question, student), strict=False):
            result = judge_question(question, letter, student)
            others = [o for o in question.options if o is not option]
            assert not any(o.why in result.message for o in others)
            if not option.correct:
                assert result.message == option.why
                assert result.misconception == option.id
                assert result.state in ("incorrect", "partial")


@every(ORDERS)
def test_exactly_one_order_is_correct(question):
    right = [s.id for s in question.steps]
    assert judge_question(question, right).state == "correct"
    for i in range(len(right) - 1):
        swapped = [*right[:i], right[i + 1], right[i], *right[i + 2 :]]
        assert judge_question(question, swapped).state == "partial"
    assert judge_question(question, right[::-1]).score == 0


@every(ORDERS)
def test_steps_are_never_shown_in_their_order(question):
    for student in STUDENTS:
        assert steps_for(question, student) != question.steps


@every(MATCHES)
def test_exactly_one_match_is_correct(question):
    right = {p.id: p.right for p in question.pairs}
    assert judge_question(question, right).state == "correct"
    first, second, *_ = right
    swapped = {**right, first: right[second], second: right[first]}
    assert judge_question(question, swapped).state == "partial"


@every(NUMBERS)
@given(number=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_a_number_is_right_and_each_misconception_is_told_apart(question, number):
    student = Student(f"student {number}")
    item = as_item(question)
    values = item.parameters_for(student)
    right = worksheet.right_value(question, values)
    assert judge_question(question, float(right), student).state == "correct"
    wrongs = worksheet.wrong_values(question, values, right)
    for wrong, value in zip(question.misconceptions, wrongs, strict=True):
        result = judge_question(question, float(value), student)
        assert result.misconception == wrong.id
        assert result.state != "correct"


@every(PROSE)
def test_prose_has_the_four_points_of_the_rubric(question):
    assert [c.id for c in question.rubric] == ["result", "reasoning", "failure", "check"]
    assert judge_question(question, "anything").score == 0


# -- nothing is given away ---------------------------------------------------------------------


@every(BANK.values())
def test_what_is_asked_does_not_hold_what_is_revealed(question):
    for student in STUDENTS:
        asked = json.dumps(vars(ask(question, student)), default=str)
        shown = reveal(question, student)
        assert shown.short not in asked
        assert shown.full not in asked
        for option in getattr(question, "options", []):
            assert option.why not in asked
        for criterion in getattr(question, "rubric", []):
            assert criterion.text not in asked


@every(CHOICES)
def test_a_wrong_answer_never_names_the_right_option(question):
    right = [o for o in question.options if o.correct]
    for option in question.options:
        if not option.correct:
            said_ = repr(judge_question(question, option.id))
            assert not any(o.text.lower() in said_.lower() for o in right if len(o.text) > 12)


@every(NUMBERS)
def test_a_wrong_number_never_shows_the_value(question):
    item = as_item(question)
    right = float(worksheet.right_value(question, item.parameters_for(None)))
    told = [judge_question(question, right * 7.77).message, *item.hints_for(None)]
    told += [m.message for m in question.misconceptions]
    shown = re.compile(rf"(?<![\d.,]){re.escape(f'{right:g}')}(?![\d,]|\.\d)")
    given = {f"{float(v):g}" for v in item.parameters_for(None).values() if not isinstance(v, str)}
    if f"{right:g}" not in given:
        assert not any(shown.search(text) for text in told)


@every(CHOICES)
def test_the_revealed_answer_marks_exactly_the_right_options(question):
    lines = reveal(question).answer
    assert len(lines) == len(question.options)
    for option in question.options:
        line = next(x for x in lines if option.why in x)
        assert line.startswith("✓" if option.correct else "✗")


# -- traces and reports ------------------------------------------------------------------------


@every(TRACES)
def test_a_trace_says_who_recorded_it_and_with_which_seed(question):
    trace = trace_of(question)
    assert trace.meta["recorded_by"] in ("llmlab engine", "llmlab simulator")
    assert trace.meta["seed"] == 0
    caption = step_table(trace).caption
    assert caption.startswith("Simulated" if trace.simulated else "Measured")
    assert "seed 0" in caption


@every(TRACES)
def test_a_trace_is_short_enough_to_read_and_its_table_holds_every_step(question):
    trace = trace_of(question)
    table = step_table(trace)
    assert len(table.rows) == len(trace.steps) <= 12
    for row, step in zip(table.rows, trace.steps, strict=True):
        assert row[0] == str(step.index)
        decodes = [name for name, _, _, decodes in step.scheduled if decodes]
        assert row[3].split() == decodes
        assert sum(int(n.replace(",", "")) for n in re.findall(r": ([\d,]+)", row[4])) == (
            step.prefill_tokens
        )


def steps(name: str) -> Trace:
    return trace_of(BANK[name])


def test_claims_about_the_stall_hold_in_its_trace():
    stall, mixed = steps("B6.stall-trace"), steps("B6.mixed-trace")
    lengths = [(s.t_end - s.t_start) / 1e6 for s in stall.steps]
    assert lengths[4] == pytest.approx(556, abs=1)
    assert stall.steps[4].decode_tokens == 0
    assert max(lengths[i] for i in (2, 3, 5, 6, 7)) < 11
    for step in (mixed.steps[4], mixed.steps[5]):
        assert step.decode_tokens == 2
        assert step.prefill_tokens == 2046
        assert 120 < (step.t_end - step.t_start) / 1e6 < 155
    gaps = [
        (b.t - a.t) / 1e6
        for r in mixed.requests.values()
        if r.class_name == "chat"
        for a, b in itertools.pairwise(r.events)
    ]
    assert max(gaps) < 155
    first = [t.requests["r2"].events[0].t for t in (stall, mixed)]
    assert first[0] < first[1] < 1.05 * first[0]


def test_claims_about_static_cancel_preempt_and_engine_hold_in_their_traces():
    static = steps("B2.static-trace")
    assert [any(s[0] == "r3" for s in step.scheduled) for step in static.steps].index(True) == 8
    assert all(len(step.scheduled) == 1 for step in static.steps[3:])
    assert static.steps[2].num_waiting == 1
    assert max(step.blocks_used for step in static.steps) == 10
    cancel = steps("B8.cancel-reached")
    assert [s.blocks_used for s in cancel.steps[3:5]] == [66, 33]
    assert [s.scheduled[0][2] for s in cancel.steps[4:]] == [515, 516, 517][: len(cancel.steps) - 4]
    preempt = steps("C4.preempted-trace")
    assert preempt.steps[6].preempted == ["r1"]
    assert preempt.steps[8].scheduled == [("r1", 65, 0, False)]
    engine = steps("A6.engine-trace")
    shared = [s for s in engine.steps if s.decode_tokens and s.prefill_tokens == 63]
    assert len(shared) >= 3
    assert not engine.simulated


@every([q for q in BANK.values() if isinstance(q, (FlawQuestion, TraceQuestion))])
def test_reports_and_tables_fit_a_terminal_of_80_columns(question):
    asked = ask(question)
    assert all(len(line) <= 74 for line in asked.report.splitlines())


# -- order of what is shown ----------------------------------------------------------------------


@given(st.text(max_size=30))
def test_options_are_shuffled_by_the_student_and_nothing_is_lost(name):
    name = "".join(c for c in name if c.isalnum())
    for question in CHOICES[:5]:
        shown = options_for(question, Student(name))
        assert sorted(o.id for o in shown) == sorted(o.id for o in question.options)
        assert shown == options_for(question, Student(name))


def test_an_answer_in_words_is_what_was_chosen():
    question = next(q for q in CHOICES if isinstance(q, MultipleQuestion))
    chosen = [o for o in question.options if o.correct]
    assert said(question, [o.id for o in chosen]) == "; ".join(o.text for o in chosen)
    match = MATCHES[0]
    letters = dict(zip([name for name, _ in rights_for(match)], "abcdefghij", strict=False))
    told = said(match, " ".join(letters[p.id] for p in match.pairs))
    assert all(f"{p.left}: {p.right}" in told for p in match.pairs)
    assert said(match, None) == ""
    first = match.pairs[0]
    assert said(match, {first.id: first.id}) == f"{first.left}: {first.right}", "the rest is open"

"""The worksheets' content: the curriculum's numbers, the wrong answers, each student's draws."""

from __future__ import annotations

import itertools
import re

import pytest

from llmlab.check import library, worksheet
from llmlab.check.audit import audit, curriculum
from llmlab.check.item import NumericSpec
from llmlab.check.judge import judge
from llmlab.check.sheets import every_numeric
from llmlab.check.solution import solution
from llmlab.check.student import CURRICULUM, Student
from llmlab.check.worksheet import Item, right_value, wrong_values
from tests.every import every

ITEMS = {item.id: item for item in every_numeric()}
PARTS = 4  # of the ten thousand: the workers of a test run share them

# Worked out by hand from the curriculum's numbers, not by the formulas.
KNOWN = {
    "A4.ttft-ratio": 3.75,
    "A4.tpot-ratio": 7.55,
    "A4.rate-ratio": 8.11,
    "A5.experts-one": 8,
    "A5.experts-many": 125.94,
    "B4.mean-prompt": 4224,
    "B4.context": 8256,
    "B5.gain-large": 20,
    "B5.gain-chunks": 12.2,
    "B6.decode": 8,
    "B6.chunk": 20,
    "B6.gap": 28,
    "B11.ttft": 400,
    "B11.e2e": 1380,
    "B11.ttft-after": 330,
    "B11.e2e-after": 1702,
    "B12.ttft": 300,
    "B12.gaps": 30,
    "B12.e2e": 1050,
    "B12.ttft-change": 100,
    "B12.e2e-change": 100,
    "B12.itl-change": 0,
    "B14.completion-time": 850,
    "C7.kv-per-token": 2 * 32 * 8 * 128 * 2,
    "C10.stream-rate": 25,
}


@every(KNOWN)
def test_without_a_name_the_answers_are_those_of_the_curriculum(name: str) -> None:
    assert judge(ITEMS[name], KNOWN[name]).state == "correct"


def test_the_growth_of_the_weights_read_is_about_ten() -> None:
    assert float(right_value(*_first("A5.weight-growth"))) == pytest.approx(10, rel=0.05)


def _first(name: str) -> tuple[object, dict[str, object]]:
    item = ITEMS[name]
    return item.spec, item.parameters_for(CURRICULUM)  # type: ignore[return-value]


@every(ITEMS)
def test_each_wrong_way_of_thinking_is_recognised(name: str) -> None:
    item = ITEMS[name]
    for student in (CURRICULUM, Student("Ada"), Student("Björk")):
        values = item.parameters_for(student)
        made = wrong_values(item.spec, values, right_value(item.spec, values))
        for wrong, value in zip(item.spec.misconceptions, made, strict=True):
            result = judge(item, value, student)
            assert result.misconception == wrong.id
            assert result.state == ("partial" if wrong.credit else "incorrect")
            assert result.message == item.fill(wrong.message, values)
            assert result.score == wrong.credit


@every(ITEMS)
def test_the_solution_is_right_for_everybody(name: str) -> None:
    for student in (CURRICULUM, Student("Ada"), Student('O\'Neil, "Zoë"')):
        assert judge(ITEMS[name], solution(name, student), student).state == "correct"


def _stands_in(number: float, text: str) -> bool:
    found = re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?", text)
    return any(float(one.rstrip(",.").replace(",", "")) == number for one in found)


@every(ITEMS)
def test_no_message_hint_or_example_gives_the_answer_away(name: str) -> None:
    item = ITEMS[name]
    for student in (CURRICULUM, Student("Ada"), Student("Grace")):
        values = item.parameters_for(student)
        right = float(right_value(item.spec, values))
        said = [item.fill(m.message, values) for m in item.spec.misconceptions]
        said += item.hints_for(student)
        said += [judge(item, answer, student).message for answer in ("fast", True, "1 parsec")]
        for text in said:
            assert not _stands_in(right, text), text
        wrong = judge(item, 123456.75, student)
        assert wrong.state == "incorrect"
        assert not _stands_in(right, wrong.message)


def _draws_are_legal(items: list[Item], students: list[Student], seen: set[tuple]) -> None:
    """Numbers come from the lists, and every wrong answer is farther off than the tolerance."""
    for item in items:
        lists = {**item.shared.draws.parameters, **item.spec.parameters}
        rows = [*item.shared.draws.together, *item.spec.together]
        for student in students:
            values = item.parameters_for(student)
            if (drawn := (item.id, *values.values())) in seen:
                continue
            seen.add(drawn)
            assert all(values[name] in p.draw for name, p in lists.items())
            assert all({k: values[k] for k in row.first} in row.draw for row in rows)
            _wrong_is_apart(item, values)


def _wrong_is_apart(item: Item, values: dict[str, object]) -> None:
    """Right and wrong answers, as floats, sorted: neighbours are farther apart than tolerated."""
    right = right_value(item.spec, values)
    points = sorted(float(x) for x in (right, *wrong_values(item.spec, values, right)))
    tolerance = item.spec.tolerance
    relative, absolute = float(tolerance.relative or 0), float(tolerance.absolute or 0)
    for low, high in itertools.pairwise(points):
        near = max(absolute, relative * max(abs(low), abs(high)))
        assert high - low > near * (1 - 1e-9), (item.id, low, high, values)


def test_drawn_numbers_are_legal_and_wrong_answers_do_not_collide() -> None:
    _draws_are_legal(list(ITEMS.values()), [Student(f"unit {n}") for n in range(50)], set())


@pytest.fixture
def trouble_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an item says of some numbers depends on the two alone: worked out once for each."""
    known: dict[tuple, str | None] = {}

    def trouble(spec: NumericSpec, values: dict[str, object]) -> str | None:
        drawn = (spec.id, *values.values())
        if drawn not in known:
            known[drawn] = work_out(spec, values)
        return known[drawn]

    work_out = worksheet.trouble
    monkeypatch.setattr(worksheet, "trouble", trouble)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_drawn_numbers_are_legal_for_ten_thousand_students(part: int, trouble_kept: None) -> None:
    key, seen = b"a course key of a class", set()
    groups = sorted({item.group for item in ITEMS.values()})[part::PARTS]
    items = [item for item in ITEMS.values() if item.group in groups]
    for thousand in range(0, 10_000, 1000):
        students = [Student(f"seed {n}", key) for n in range(thousand, thousand + 1000)]
        _draws_are_legal(items, students, seen)


def test_students_get_different_numbers() -> None:
    item = ITEMS["B11.e2e"]
    drawn = {tuple(item.parameters_for(Student(f"n{i}")).values()) for i in range(200)}
    assert len(drawn) > 150


def test_numbers_depend_on_key_and_name_alone() -> None:
    item = ITEMS["B11.ttft"]
    ada = item.parameters_for(Student("Ada"))
    assert ada == item.parameters_for(Student("  Ada "))
    keys = [item.parameters_for(Student("Ada", key=bytes([n]) * 16)) for n in range(50)]
    assert len({tuple(v.values()) for v in keys}) > 30


def test_the_sampler_is_pinned() -> None:
    """A changed sampler would give a class new numbers in the middle of a course."""
    student = Student("Ada", key=b"0123456789abcdef")
    assert student.fingerprint == PINNED_FINGERPRINT
    assert ITEMS["B11.ttft"].parameters_for(student) == PINNED


PINNED_FINGERPRINT = "e20383"
PINNED: dict[str, object] = {
    "wait": 110,
    "preprocessing": 40,
    "prefill": 270,
    "tokens": 45,
    "gap": 24,
    "prefill_after": 150,
    "gap_after": 30,
}


def test_all_items_of_a_worksheet_share_its_numbers() -> None:
    sheet = library.load_worksheet("b11")
    values = [item.parameters_for(Student("Ada")) for item in sheet.items]
    assert all(v == values[0] for v in values)


def test_the_content_is_sound() -> None:
    found = audit(students=20)
    assert found.problems == []
    assert found.items == len(library.items())
    assert found.misconceptions == sum(len(i.spec.misconceptions) for i in ITEMS.values())


def test_every_calculation_of_the_curriculum_is_an_item() -> None:
    covered = {c for item in ITEMS.values() for c in item.covers}
    assert {
        *("A3", "A4", "A5", "A6", "B1", "B2", "B4", "B5", "B6", "B7", "B8", "B9", "B11", "B12"),
        *("B14", "C3", "C4", "C5", "C6", "C7", "C8", "C9", "C10"),
    } <= covered


def test_the_curriculum_has_all_its_ids() -> None:
    want = [f"A{n}" for n in range(10)] + [f"B{n}" for n in range(1, 18)]
    want += [f"C{n}" for n in range(1, 11)]
    assert list(curriculum()) == want


def test_no_sentence_says_a_word_twice_as_a_unit_beside_its_name_would():
    people = (CURRICULUM, Student("Ada"))
    twice = re.compile(r"\b(\w+) \1\b")
    said = [s.intro_for(who) for s in library.worksheets().values() for who in people]
    said += [item.prompt_for(who) for item in ITEMS.values() for who in people]
    assert [text for text in said if twice.search(text)] == []

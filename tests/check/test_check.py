"""What a lab's cell sees: states, messages, hints, and never the expected value."""

from __future__ import annotations

import subprocess
import sys
import traceback
from typing import Any

import pytest

from llmlab.check import check, checker, hint, progress
from llmlab.check.handin import build
from llmlab.check.handin_page import handin_html
from llmlab.check.judge import judge
from llmlab.check.library import find_item, load_worksheet, questions
from llmlab.check.result import GLYPHS, Result
from llmlab.check.store import Store
from llmlab.check.student import CURRICULUM, Student, make_sheet, save_student


def test_a_right_answer_is_right_in_any_unit(store: Store) -> None:
    for answer in (400, 400.0, "400 ms", "0.4 s", "400000 us"):
        result = check("B11.ttft", answer, store=store)
        assert result.state == "correct"
        assert result.score == 1.0


def test_what_was_understood_is_told(store: Store) -> None:
    assert check("B11.ttft", "0.4 s", store=store).understood == "read as 0.4 s = 400 ms"
    assert "0.4 s = 400 ms" in repr(check("B11.ttft", "0.4 s", store=store))


@pytest.mark.parametrize("blank", [..., None, "", "   "])
def test_a_blank_is_not_answered_yet_and_not_an_attempt(blank: Any, store: Store) -> None:
    result = check("B11.ttft", blank, store=store)
    assert result.state == "not answered yet"
    assert list(store.events()) == []


def test_a_word_in_a_number_box_says_what_is_expected_with_an_example(store: Store) -> None:
    result = check("B11.ttft", "quickly", store=store)
    assert result.state == "error"
    assert "a number in ms" in result.message
    assert "12.5 ms" in result.message


@pytest.mark.parametrize("answer", [True, float("nan"), float("inf"), "0,4 s", [400], object()])
def test_what_is_no_number_is_an_error_and_no_wrong_answer(answer: Any, store: Store) -> None:
    assert check("B11.ttft", answer, store=store).state == "error"


def test_every_state_has_a_glyph_and_a_word() -> None:
    assert set(GLYPHS) == {"correct", "partial", "incorrect", "not answered yet", "error"}
    assert len(set(GLYPHS.values())) == 5
    for state, glyph in GLYPHS.items():
        shown = repr(Result("X.y", state, "m"))
        assert glyph in shown
        assert state in shown


def test_html_is_a_status_and_escapes_what_was_typed(store: Store) -> None:
    bundle = check("B11.ttft", "<img src=x onerror=alert(1)>", store=store)._repr_mimebundle_()
    assert 'role="status"' in bundle["text/html"]
    assert "<img" not in bundle["text/html"]
    assert "&lt;img" in bundle["text/html"]


def test_hints_come_after_the_first_wrong_answer_and_go_deeper(store: Store) -> None:
    hints = find_item("B11.ttft").hints_for()
    seen = [check("B11.ttft", 1234, store=store).hint for _ in range(5)]
    assert seen == ["", hints[0], hints[1], hints[2], hints[2]]


def test_asking_for_hints_goes_deeper_and_is_recorded(store: Store) -> None:
    told = [hint("B11.ttft", store=store) for _ in range(4)]
    assert [t[:11] for t in told] == ["Hint 1 of 3", "Hint 2 of 3", "Hint 3 of 3", "Hint 3 of 3"]
    check("B11.ttft", 400, store=store)
    assert next(iter(store.events("attempt"))).data["hints"] == 3


def test_an_unknown_id_lists_near_names_and_raises_nothing(store: Store) -> None:
    result = check("B11.tfft", 400, store=store)
    assert result.state == "error"
    assert "B11.ttft" in result.message
    assert "B11.ttft" in hint("b11.TTFT", store=store)
    with pytest.raises(ValueError, match=r"b11"):
        load_worksheet("B11x")


@pytest.mark.parametrize("bad", ["", "x" * 500, "../../etc/passwd", None, 3])
def test_any_id_gives_a_result(bad: Any, store: Store) -> None:
    assert check(bad, 1, store=store).state == "error"


def test_within_the_tolerance_is_right_and_beyond_it_is_not() -> None:
    item = find_item("A4.tpot-ratio")  # 243.8 / 32.3 = 7.548, within 0.5 %
    assert judge(item, 7.55).state == "correct"
    assert judge(item, 243.8 / 32.3).state == "correct"
    assert judge(item, 243.8 / 32.3 * 1.0051).state == "incorrect"
    assert judge(item, 8).state == "incorrect"
    ttft = find_item("B11.ttft")  # 400 ms, within 0.5 %
    assert [judge(ttft, a).state for a in (402, 398.0, "0.402 s")] == ["correct"] * 3
    assert judge(ttft, "402.0000001").state == "incorrect"


def test_the_noise_of_binary_arithmetic_does_not_make_an_exact_answer_wrong() -> None:
    item = find_item("B12.gaps")
    assert (0.1 + 0.2) * 100 != 30
    assert judge(item, (0.1 + 0.2) * 100).state == "correct"
    assert judge(item, 30.00001).state == "incorrect"


def test_an_edge_of_the_tolerance_counts_as_right() -> None:
    """46.0 for 45.8 ± 0.2 is right, though 46.0 - 45.8 > 0.2 in binary."""
    from llmlab.check.item import Tolerance

    assert 46.0 - 45.8 > 0.2
    from fractions import Fraction

    assert Tolerance(absolute=0.2).accepts(Fraction("46.0"), Fraction("45.8"), {})
    assert Tolerance(absolute=0.2).accepts(46.0, 45.8, {})
    assert not Tolerance(absolute=0.2).accepts(46.01, 45.8, {})


def test_an_order_of_magnitude_and_an_interval() -> None:
    from llmlab.check.item import Tolerance

    wide = Tolerance(order_of_magnitude=0.5)
    assert wide.accepts(300.0, 100.0, {})
    assert not wide.accepts(400.0, 100.0, {})
    assert not wide.accepts(-100.0, 100.0, {})
    between = Tolerance(interval=("answer - slack", "answer * 2"))
    assert between.accepts(90, 100, {"slack": 10})
    assert between.accepts(200, 100, {"slack": 10})
    assert not between.accepts(89, 100, {"slack": 10})


def test_seconds_taken_for_milliseconds_earn_half_and_a_reason(store: Store) -> None:
    result = check("B11.ttft", 0.4, store=store)
    assert (result.state, result.score) == ("partial", 0.5)
    assert "milliseconds" in result.message


def test_a_name_changes_the_numbers_and_the_right_answer(store: Store) -> None:
    ada = Student("Ada")
    assert "80 ms" in find_item("B11.ttft").prompt_for(ada)
    assert check("B11.ttft", 305, store=store, student=ada).state == "correct"
    assert check("B11.ttft", 400, store=store, student=ada).state == "incorrect"


def test_the_saved_name_and_the_hub_name_are_used(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTERHUB_USER", "Ada")
    assert check("B11.ttft", 305, store=store).state == "correct"
    save_student(CURRICULUM)
    assert check("B11.ttft", 400, store=store).state == "correct"


def test_a_sheet_gives_its_numbers_without_the_key(store: Store) -> None:
    from llmlab.check.sheets import numbers_of

    student = Student("Ada", key=b"the course key of this class")
    sheet = make_sheet(student, numbers_of)
    assert "course key" not in str(sheet)
    save_student(student, sheet)
    want = find_item("B11.ttft").parameters_for(student)
    right = want["wait"] + want["preprocessing"] + want["prefill"]
    assert check("B11.ttft", right, store=store).state == "correct"


def test_no_error_reaches_the_notebook_or_shows_a_variable(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        secret_right_answer = 400
        raise RuntimeError(f"inside, with {secret_right_answer}")

    monkeypatch.setattr(checker, "judge", broken)
    result = check("B11.ttft", 1, store=store)
    assert result.state == "error"
    assert "400" not in repr(result)
    assert traceback.format_exc().strip() == "NoneType: None"


def test_an_answer_that_misbehaves_is_an_error() -> None:
    class Trap:
        shape = ()

        def item(self) -> float:
            raise RuntimeError("boom")

        def __repr__(self) -> str:
            raise RuntimeError("no repr either")

    result = judge(find_item("B11.ttft"), Trap())
    assert result.state == "error"


def test_the_learners_names_are_left_alone(store: Store) -> None:
    values = [1, 2]
    check("B11.ttft", values, store=store)
    assert values == [1, 2]


def test_progress_keeps_the_best_state(store: Store) -> None:
    check("B11.ttft", 1, store=store)
    check("B11.ttft", 400, store=store)
    check("B11.ttft", 2, store=store)
    rows = {row.item: row for row in progress(store=store).rows}
    assert (rows["B11.ttft"].state, rows["B11.ttft"].attempts) == ("correct", 3)
    assert rows["B11.e2e"].state == "not answered yet"
    assert "1 of" in repr(progress(store=store))


def test_the_page_of_a_hand_in_shows_what_it_counts(store: Store) -> None:
    asked = next(q.id for q in questions().values() if q.hints)
    check("B11.ttft", 1, store=store)
    hint(asked, store=store)  # without an answer
    page = handin_html(store, build(store, CURRICULUM))
    assert "<b>1</b> attempts" in page
    assert "<b>1</b> hints" in page
    assert "B11.ttft" in page
    assert asked in page


@pytest.mark.slow
def test_the_checker_needs_no_torch_and_no_widgets() -> None:
    code = (
        "import sys, llmlab.check as c; from llmlab.check.store import Store;"
        "c.check('B11.ttft', '0.4 s', store=Store(None));"
        "bad = {'torch', 'plotly', 'ipywidgets', 'IPython', 'pandas', 'nbformat', 'jupyter_core'};"
        "print(sorted(bad & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

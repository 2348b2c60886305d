"""The quiz panel: by keyboard, nothing given away, every answer kept."""

from __future__ import annotations

import ipywidgets as w
import pytest

from llmlab.check import library
from llmlab.check.choose import LETTERS, options_for, rights_for
from llmlab.check.question import ProseQuestion
from llmlab.viz.panels.quiz_panel import QuizPanel


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMLAB_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("JUPYTERHUB_USER", raising=False)
    monkeypatch.delenv("LLMLAB_ITEMS", raising=False)


def walk(widget):
    yield widget
    for child in getattr(widget, "children", ()):
        yield from walk(child)


def page(panel) -> str:
    """All text that the panel shows now."""
    parts = []
    for widget in walk(panel.widget):
        parts += [
            str(getattr(widget, name, "")) for name in ("value", "description", "placeholder")
        ]
        parts += [str(getattr(widget, "options", ""))]
    return "\n".join(parts)


def letter(question: str, correct: bool) -> str:
    shown = options_for(library.find_question(question))
    return "abcdefghij"[next(i for i, o in enumerate(shown) if o.correct == correct)]


def test_every_question_of_the_bank_is_shown_without_its_answer():
    panel = QuizPanel(count=1000)
    seen = 0
    while panel.sitting.current is not None:
        question = panel.sitting.current
        text = page(panel)
        assert question.id in text
        assert question.short not in text
        assert not any(o.why in text for o in getattr(question, "options", []))
        assert not any(c.text in text for c in getattr(question, "rubric", []))
        assert 'role="status"' in panel.status.value
        assert "not answered yet" in panel.status.value
        seen += 1
        panel._next()
    assert seen == len(library.questions())
    assert "done" in panel.status.value


def test_every_control_has_words_for_a_screen_reader():
    panel = QuizPanel(count=1000)
    while panel.sitting.current is not None:
        for widget in walk(panel.widget):
            if isinstance(
                widget,
                (w.Text, w.Textarea, w.Dropdown, w.RadioButtons, w.Checkbox, w.Button),
            ):
                assert widget.description
        panel._next()


def test_wrong_says_why_then_right_and_answers_come_when_asked_for():
    panel = QuizPanel("B13", count=1)
    panel.input.first.value = letter("B13.earns-a-point", False)
    panel._check()
    assert "✗" in panel.status.value
    assert "incorrect" in panel.status.value
    assert panel.answers.value == ""
    panel.say_sure("confident")
    panel.input.first.value = letter("B13.earns-a-point", True)
    panel._check()
    assert "correct" in panel.status.value
    panel._short()
    assert "Short answer" in panel.answers.value
    panel._full()
    panel._full()
    assert panel.answers.value.count("Full answer") == 1
    kinds = [e.kind for e in panel.sitting.store.events()]
    assert kinds == ["attempt", "attempt", "confidence"]


def test_an_empty_answer_is_not_answered_yet_and_keeps_nothing():
    panel = QuizPanel("B13", count=1)
    panel._check()
    assert "not answered yet" in panel.status.value
    assert panel.short_button.disabled
    assert list(panel.sitting.store.events()) == []


def test_words_are_committed_before_the_rubric_and_cannot_be_changed_after():
    panel = QuizPanel("follow-ups", level="L1")
    assert isinstance(panel.question, ProseQuestion)
    panel._check()
    assert "write your answer first" in panel.status.value
    panel.input.first.value = "TPOT, and the P99 ITL <b>too</b>"
    panel._check()
    assert panel.input.first.disabled
    assert "sha256" in panel.status.value
    assert len(panel.rubric) == 4
    panel.rubric[0].value = panel.rubric[1].value = True
    panel._check()
    assert "2 of 4 points by your own score, 50%" in panel.status.value
    panel.next_button.click()
    assert "0 of 1 right" in panel.prompt.value


def test_matches_and_orders_are_typed_as_letters():
    panel = QuizPanel("A3", level="L1", role="product", count=50)
    while panel.question.kind != "match":
        panel._next()
    names = [name for name, _ in rights_for(panel.question)]
    panel.input.first.value = " ".join(LETTERS[names.index(p.id)] for p in panel.question.pairs)
    panel._check()
    assert "✓" in panel.status.value


def test_the_letter_box_and_the_radio_buttons_follow_each_other():
    panel = QuizPanel("B13", count=1)
    radio = next(x for x in walk(panel.place) if isinstance(x, w.RadioButtons))
    panel.input.first.value = "C"
    assert radio.value == "c"
    radio.value = "b"
    assert panel.input.value() == "b"
    panel.input.first.value = "zebra"
    assert radio.value is None
    panel._check()
    assert "none of the choices" in panel.status.value


def test_a_confidence_is_said_by_a_sign_and_a_word():
    panel = QuizPanel("B13", count=1)
    panel.sure_buttons["getting there"].click()
    assert panel.sure == "getting there"
    shown = [b.description for b in panel.sure_buttons.values()]
    assert shown == ["not yet", "✓ getting there", "confident"]


def test_without_widgets_the_prompts_and_the_way_to_answer_are_there():
    bundle = QuizPanel("C9", count=2)._repr_mimebundle_()
    assert "check(" in bundle["text/plain"]
    assert "<li>" in bundle["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in bundle


def test_a_topic_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(ValueError, match="traces"):
        QuizPanel("tea")


def test_questions_that_are_named_come_in_that_order():
    panel = QuizPanel(ids=["A7.l2", "A7.l1"])
    assert [q.id for q in panel.sitting.questions] == ["A7.l2", "A7.l1"]
    with pytest.raises(ValueError, match="tea"):
        QuizPanel(ids=["tea"])


def test_a_quiz_that_was_only_looked_through_counts_nothing():
    panel = QuizPanel(ids=["B13.earns-a-point"])
    panel._next()
    assert "0 of 0" not in panel.prompt.value
    assert "No question was answered" in panel.prompt.value

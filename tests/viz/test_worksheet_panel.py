"""The worksheet form says what was understood, hints step by step, and never reveals."""

from __future__ import annotations

import pytest

from llmlab.check import progress
from llmlab.viz.panels.worksheet_panel import WorksheetPanel


@pytest.fixture
def panel(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMLAB_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("LLMLAB_STUDENT", raising=False)
    monkeypatch.delenv("JUPYTERHUB_USER", raising=False)
    return WorksheetPanel("b11")


def answer(panel, item: str, text: str) -> str:
    row = next(row for row in panel.rows if row.item.id == item)
    row.box.value = text
    row.check()
    return row.result.value


def test_a_fresh_form_is_not_answered_yet(panel):
    assert all("not answered yet" in row.result.value for row in panel.rows)
    assert "0 of" in panel.status.value


def test_a_right_answer_counts_once_and_running_it_again_doubles_nothing(panel):
    for _ in range(2):
        assert "correct" in answer(panel, "B11.ttft", "0.4 s")
    assert panel.status.value.count("1 of") == 1
    assert panel.bar.value == 1


def test_a_form_made_again_shows_the_answers_that_are_kept(panel):
    """After a restart of the kernel, or where the cell is run twice."""
    answer(panel, "B11.ttft", "0.4 s")
    answer(panel, "B11.e2e", "1400 ms")
    again = {row.item.id: row for row in WorksheetPanel("b11").rows}
    assert again["B11.ttft"].box.value == "0.4 s"
    assert "✓ B11.ttft: correct" in again["B11.ttft"].result.value
    assert "✗ B11.e2e: incorrect" in again["B11.e2e"].result.value
    assert all(
        "not answered yet" in again[i].result.value for i in again if again[i].box.value == ""
    )
    assert [row.attempts for row in progress().rows if row.item == "B11.ttft"] == [1]


def test_an_empty_box_is_not_answered_yet_and_a_word_gets_an_example(panel):
    assert "not answered yet" in answer(panel, "B11.ttft", "")
    said = answer(panel, "B11.ttft", "soon")
    assert "number" in said
    assert "ms" in said


def test_the_named_mistake_is_named_and_the_answer_stays_hidden(panel):
    said = answer(panel, "B11.e2e", "1400 ms")
    assert "incorrect" in said
    assert "gap" in said
    assert "1380" not in said


def test_hints_go_deeper_each_time(panel):
    row = panel.rows[0]
    row.hint()
    first = row.result.value
    row.hint()
    assert first != row.result.value
    assert "Hint 2" in row.result.value


def test_text_typed_by_a_student_is_escaped(panel):
    assert "<img" not in answer(panel, "B11.ttft", "<img src=x onerror=alert(1)>")


def test_without_widgets_the_prompts_and_the_way_to_answer_are_there(panel):
    bundle = panel._repr_mimebundle_()
    assert "check(" in bundle["text/plain"]
    assert "<li>" in bundle["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in bundle

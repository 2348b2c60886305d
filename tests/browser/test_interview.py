"""Lab 11 in a real browser: it runs, and a follow-up is answered by keyboard."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def test_the_interview_lab_runs_and_a_question_is_answered_by_keyboard(jupyter, notebook):
    notebook.open(jupyter, "11_interview.ipynb")
    notebook.run_all()
    shown = " ".join(str(cell.get("outputs", "")) for cell in notebook.cells())
    assert shown.count("not answered yet") >= 5
    assert notebook.say_how_sure() == 3
    notebook.looks("11_quiz", ".llmlab-quiz")
    assert notebook.outside == []
    assert notebook.noise() == []

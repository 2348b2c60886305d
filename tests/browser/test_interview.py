"""Lab 11 in a real browser: it runs, and a follow-up is answered by keyboard."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def test_the_interview_lab_runs_and_a_question_is_answered_by_keyboard(jupyter, notebook):
    notebook.open(jupyter, "11_interview.ipynb")
    notebook.run_all()
    page = notebook.page
    page.locator("[class*=llmlab-quiz]").first.wait_for(timeout=30_000)
    shown = " ".join(str(cell.get("outputs", "")) for cell in notebook.cells())
    assert shown.count("not answered yet") >= 5
    sure = page.get_by_role("button", name="getting there").first
    sure.scroll_into_view_if_needed()
    sure.focus()
    page.keyboard.press("Enter")
    for width in (1280, 768):
        page.set_viewport_size({"width": width, "height": 1000})
        for theme in ("Light", "Dark"):
            notebook.theme(f"JupyterLab {theme}")
            notebook.shot(f"11_{theme.lower()}_{width}")
    assert notebook.outside == []
    assert notebook.noise() == []

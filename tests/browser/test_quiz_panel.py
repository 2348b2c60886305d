"""The quiz panel in a real browser, by keyboard alone, in both themes."""

from __future__ import annotations

import json
import urllib.request

import pytest

from tests.browser.conftest import TOKEN

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

CELLS = [
    'from llmlab.viz.panels import QuizPanel\nQuizPanel("B6", level="L2", count=2)',
    'QuizPanel("A3", level="L1", role="product", count=3, seed=1)',
    'QuizPanel("B3", level="L3")',
]


def make_notebook(url: str, name: str) -> None:
    cells = [
        {
            "cell_type": "code",
            "id": f"c{i}",
            "source": source,
            "metadata": {},
            "outputs": [],
            "execution_count": None,
        }
        for i, source in enumerate(CELLS)
    ]
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    content = {
        "cells": cells,
        "metadata": {"kernelspec": spec},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    body = json.dumps({"type": "notebook", "format": "json", "content": content}).encode()
    request = urllib.request.Request(
        f"{url}/api/contents/{name}?token={TOKEN}", data=body, method="PUT"
    )
    urllib.request.urlopen(request, timeout=20).read()


def test_a_question_is_answered_by_keyboard_alone(jupyter, notebook):
    make_notebook(jupyter, "quiz.ipynb")
    notebook.open(jupyter, "quiz.ipynb")
    notebook.run_all()
    page = notebook.page
    panel = page.locator(".llmlab-quiz").first
    panel.wait_for(timeout=30_000)
    status = panel.locator("[role=status]").first
    assert "not answered yet" in status.inner_text()
    assert panel.locator("input[type=radio]").count() == 4
    # JupyterLab keeps the arrow keys for itself: Tab, letters and Enter must do.
    panel.locator("input[type=text]").first.focus()
    page.keyboard.type("a")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # how sure: not yet
    panel.get_by_text("✓ not yet").wait_for(timeout=15_000)
    for _ in range(3):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # Check
    page.wait_for_function(
        """() => /correct/.test(document.querySelector('.llmlab-quiz [role=status]').innerText)""",
        timeout=15_000,
    )
    panel.locator(".llmlab-quiz-short").focus()
    page.keyboard.press("Enter")
    panel.get_by_text("Short answer.").wait_for(timeout=15_000)
    for number in range(len(CELLS)):
        for theme in ("Light", "Dark"):
            notebook.theme(f"JupyterLab {theme}")
            page.locator(".llmlab-quiz").nth(number).scroll_into_view_if_needed()
            page.locator(".llmlab-quiz").nth(number).screenshot(
                path=str(notebook.shot(f"quiz_{number}_{theme.lower()}"))
            )
    assert page.locator(".llmlab-quiz table").count() >= 1
    wide = page.evaluate(
        """() => [...document.querySelectorAll('.llmlab-quiz label')]
            .filter(e => e.scrollWidth > e.clientWidth + 2).length"""
    )
    assert wide == 0, "a label is cut off"
    panel.locator(".llmlab-quiz-next").focus()
    page.keyboard.press("Enter")
    panel.get_by_text("2 of 2").wait_for(timeout=15_000)
    assert notebook.outside == []
    assert notebook.noise() == []

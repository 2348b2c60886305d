"""Lab 07 in a real browser: six headlines with their books, and worksheets by keyboard."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def test_the_six_lies_are_shown_caught_and_checked(jupyter, notebook):
    notebook.open(jupyter, "07_honest_benchmarks.ipynb")
    notebook.run_all()
    page = notebook.page
    page.locator(".llmlab-worksheet").first.wait_for(timeout=30_000)

    # Right and wrong by keyboard alone: the state is a word, and the answer stays hidden.
    for text, word in (("500", "incorrect"), ("450", "correct")):
        box = page.locator(".llmlab-answer-B8-accepted input").first
        box.scroll_into_view_if_needed()
        box.fill(text)
        box.press("Tab")
        page.keyboard.press("Enter")  # the focus is on Check now
        page.wait_for_function(
            "w => document.querySelector('.llmlab-result-B8-accepted').innerText.includes(' ' + w)",
            arg=word,
            timeout=15_000,
        )
        said = page.locator(".llmlab-result-B8-accepted").first.inner_text()
        assert word == "correct" or "450" not in said

    books = page.locator("table", has_text="The books (simulated)").first
    books.scroll_into_view_if_needed()
    cells = books.locator("td").all_inner_texts()
    assert cells[cells.index("rejected") :][:3] == ["rejected", "0", "40"]
    notebook.looks("07_worksheet", ".llmlab-worksheet")
    assert len(notebook.solve_worksheets()) == 4
    assert notebook.outside == []
    assert notebook.noise() == []

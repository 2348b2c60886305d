"""Lab 01 as a student meets it: run all, turn a knob by keyboard, answer rightly and wrongly."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]


def status(notebook, panel: str) -> str:
    return notebook.page.locator(f"{panel} [role=status]").first.inner_text()


def test_the_first_lab_runs_teaches_and_checks(jupyter, notebook):
    notebook.open(jupyter, "01_two_phases.ipynb")
    notebook.run_all()
    page = notebook.page
    page.locator(".llmlab-request-panel").wait_for(timeout=30_000)

    # A real answer streams into the panel, and Stop or the end leaves no KV block behind.
    notebook.press("run")
    notebook.wait_status(".llmlab-request-panel", "✓")
    assert "KV blocks still in use: 0" in status(notebook, ".llmlab-request-panel")
    page.wait_for_function(  # a busy machine draws later than it says
        """() => { const plot = document.querySelector('.llmlab-request-panel .js-plotly-plot');
          const bars = name => plot?._fullData?.find(t => t.name === name)?.x.length ?? 0;
          return bars('prefill') >= 1 && bars('decode') >= 4; }""",
        timeout=30_000,
    )

    # A slider moved by keyboard sends one real request of the new size.
    before = page.locator(".llmlab-prompt-tokens-box input").first.input_value()
    notebook.turn("prompt-tokens")
    page.wait_for_function(
        "b => document.querySelector('.llmlab-prompt-tokens-box input').value !== b", arg=before
    )
    notebook.wait_status(".llmlab-knob-panel", "✓")
    page.wait_for_function(
        """() => { const plot = document.querySelector('.llmlab-knob-panel .js-plotly-plot');
          return !!plot?._fullData?.length && plot._fullData.every(d => d.x.length >= 2); }""",
        timeout=30_000,
    )

    # The cells that measure and check say so, and a blank is a blank.
    text = "".join(str(cell.get("outputs", "")) for cell in notebook.cells())
    assert "the engine's own: True" in text
    assert "the same first token: True" in text
    assert "joined by a long prompt" in text
    assert text.count("not answered yet") >= 5

    # One item right, one wrong: state, score and hint are in words.
    sheet = page.locator(".llmlab-worksheet").first
    sheet.scroll_into_view_if_needed()
    answer(page, "B11-ttft", "400 ms")
    wait_result(page, "B11-ttft", "correct")
    answer(page, "B11-e2e", "1400 ms")
    wait_result(page, "B11-e2e", "incorrect")
    assert "49" not in result(page, "B11-e2e")
    page.locator(".llmlab-hint-B11-e2e").first.click()
    page.wait_for_function(
        "() => /hint/i.test(document.querySelector('.llmlab-result-B11-e2e').innerText)"
    )

    for panel in ("request-panel", "knob-panel", "worksheet"):
        notebook.looks(f"01_{panel}", f".llmlab-{panel}")
    assert notebook.outside == []
    assert notebook.noise() == []


def answer(page, item: str, text: str) -> None:
    box = page.locator(f".llmlab-answer-{item} input").first
    box.scroll_into_view_if_needed()
    box.fill(text)
    box.press("Tab")
    page.keyboard.press("Enter")  # the focus is on Check now


def result(page, item: str) -> str:
    return page.locator(f".llmlab-result-{item}").first.inner_text()


def wait_result(page, item: str, word: str) -> None:
    page.wait_for_function(
        "([i, w]) => document.querySelector('.llmlab-result-' + i).innerText.includes(' ' + w)",
        arg=[item, word],
        timeout=15_000,
    )

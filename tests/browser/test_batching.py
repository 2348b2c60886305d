"""Lab 04 in a real browser: it races, a knob moves the race, a real race runs from the panel."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

PANEL = ".llmlab-race-panel"


def decode_bars(page) -> int:
    return page.evaluate(
        """p => document.querySelector(p + ' .js-plotly-plot')._fullData
           .find(d => d.name === 'decode').x.length""",
        PANEL,
    )


def test_the_batching_lab_races_on_both_clocks(jupyter, notebook):
    notebook.open(jupyter, "04_batching.ipynb")
    notebook.run_all()
    page = notebook.page
    page.locator(PANEL).wait_for(timeout=30_000)
    notebook.wait_drawn(PANEL)

    # By keyboard: more requests, so more bars, at once and marked as simulated.
    before = decode_bars(page)
    notebook.turn("race-requests", times=3)
    page.wait_for_function(
        """([p, b]) => document.querySelector(p + ' .js-plotly-plot')._fullData
           .find(d => d.name === 'decode').x.length > b""",
        arg=[PANEL, before],
        timeout=15_000,
    )
    notebook.wait_status(PANEL, "Simulated")
    notebook.looks("04_race", PANEL)

    # The same race for real, small, started with its button.
    page.locator(".llmlab-race-where select").first.select_option("this machine, real")
    page.locator(".llmlab-race-requests-box input").first.fill("8")
    page.keyboard.press("Enter")
    page.locator(".llmlab-race-mean-box input").first.fill("4")
    page.keyboard.press("Enter")
    notebook.press("race-run")
    notebook.wait_status(PANEL, "Measured")
    notebook.wait_drawn(PANEL, "· real")
    notebook.shot("04_race_real", PANEL)
    page.locator(".js-plotly-plot").first.scroll_into_view_if_needed()
    notebook.shot("04_first_race", ".js-plotly-plot")
    assert notebook.solve_worksheets() == ["B2.steps"]
    assert notebook.outside == []
    assert notebook.noise() == []

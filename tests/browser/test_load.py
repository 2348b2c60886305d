"""Lab 06 in a real browser: users on the engine, a sweep on the simulator, limits by keyboard."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

PANEL = ".llmlab-load-panel"


def test_the_load_lab_sweeps_and_a_limit_moves_by_keyboard(jupyter, notebook):
    notebook.open(jupyter, "06_load.ipynb")
    notebook.run_all()
    page = notebook.page
    page.locator(PANEL).wait_for(timeout=30_000)
    said = "() => document.querySelector('.llmlab-load-panel [role=status]').innerText"
    before = page.evaluate(said)
    assert "Simulated. Up to" in before
    notebook.turn("load-tpot", "PageUp", 3)
    page.wait_for_function(f"b => ({said})() !== b", arg=before, timeout=15_000)
    drawn = page.evaluate(
        """() => document.querySelector('.llmlab-load-panel .js-plotly-plot')._fullData
           .map(d => d.x.length)"""
    )
    assert drawn == [7, 7, 7]
    notebook.looks("06_panel", PANEL)

    # The same knobs for real: short prompts, one sweep, and the figure says so.
    page.locator(".llmlab-load-where select").first.select_option("this machine, real")
    notebook.wait_status(PANEL, "for real")
    for knob, tokens in (("prompt", "16"), ("output", "8")):
        page.locator(f".llmlab-load-{knob}-box input").first.fill(tokens)
        page.keyboard.press("Enter")
    notebook.press("load-run")
    notebook.wait_status(PANEL, "Measured on this machine", 60_000)
    notebook.wait_drawn(PANEL, "measured here")
    notebook.shot("06_panel_real", PANEL)
    assert len(notebook.solve_worksheets()) == 3
    assert notebook.outside == []
    assert notebook.noise() == []

"""Lab 06 in a real browser: users on the engine, a sweep on the simulator, limits by keyboard."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def test_the_load_lab_sweeps_and_a_limit_moves_by_keyboard(jupyter, notebook):
    notebook.open(jupyter, "06_load.ipynb")
    notebook.run_all()
    page = notebook.page
    page.locator(".llmlab-load-panel").wait_for(timeout=30_000)
    said = "() => document.querySelector('.llmlab-load-panel [role=status]').innerText"
    before = page.evaluate(said)
    assert "Simulated. Up to" in before
    handle = page.locator(".llmlab-load-tpot-slider .noUi-handle").first
    handle.scroll_into_view_if_needed()
    handle.focus()
    for _ in range(3):
        page.keyboard.press("PageUp")
    page.wait_for_function(f"b => ({said})() !== b", arg=before, timeout=15_000)
    drawn = page.evaluate(
        """() => document.querySelector('.llmlab-load-panel .js-plotly-plot')._fullData
           .map(d => d.x.length)"""
    )
    assert drawn == [7, 7, 7]
    for width in (1280, 768):
        page.set_viewport_size({"width": width, "height": 1000})
        for theme in ("Light", "Dark"):
            notebook.theme(f"JupyterLab {theme}")
            notebook.shot(f"06_panel_{theme.lower()}_{width}", ".llmlab-load-panel")
    assert notebook.outside == []
    assert notebook.noise() == []

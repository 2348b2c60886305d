"""Lab 02 in a real browser: it measures, draws the roof, and a knob moves the points."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]


def intensity(page) -> float:
    return page.evaluate(
        """() => document.querySelector('.llmlab-roofline-panel .js-plotly-plot')._fullData
           .find(d => d.name === 'decode').x[0]"""
    )


def test_the_roofline_lab_measures_and_its_knobs_move_the_points(jupyter, notebook):
    notebook.open(jupyter, "02_roofline.ipynb")
    notebook.run_all()
    page = notebook.page
    page.locator(".llmlab-roofline-panel").wait_for(timeout=30_000)
    before = intensity(page)
    handle = page.locator(".llmlab-roofline-batch-slider .noUi-handle").first
    handle.scroll_into_view_if_needed()
    handle.focus()
    for _ in range(3):
        page.keyboard.press("PageUp")
    page.wait_for_function(
        """b => document.querySelector('.llmlab-roofline-panel .js-plotly-plot')._fullData
           .find(d => d.name === 'decode').x[0] > b""",
        arg=before,
        timeout=15_000,
    )
    assert "Simulated" in page.locator(".llmlab-roofline-panel [role=status]").first.inner_text()
    for width in (1280, 768):
        page.set_viewport_size({"width": width, "height": 1000})
        for theme in ("Light", "Dark"):
            notebook.theme(f"JupyterLab {theme}")
            notebook.shot(f"02_panel_{theme.lower()}_{width}", ".llmlab-roofline-panel")
    assert notebook.outside == []
    assert notebook.noise() == []

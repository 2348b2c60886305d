"""Lab 02 in a real browser: it measures, draws the roof, and a knob moves the points."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]


def intensity(page) -> float:
    return page.evaluate(
        """() => document.querySelector('.llmlab-roofline-panel .js-plotly-plot')._fullData
           .find(d => d.name === 'decode').x[0]"""
    )


GAUGE = """() => { const g = document.querySelector('.llmlab-use-panel .js-plotly-plot')._fullData
  .find(d => d.name === 'in use'); return g.x[g.y.indexOf('decode · compute')]; }"""


def the_gauges_follow(notebook) -> None:
    """A knob by keyboard moves the simulated gauges; Run fills them from real steps."""
    page, panel = notebook.page, ".llmlab-use-panel"
    page.locator(f"{panel} .llmlab-use-where select").first.select_option("simulated GPU")
    notebook.turn("use-requests", "Home")
    notebook.wait_status(panel, "Simulated")
    page.wait_for_function(f"() => ({GAUGE})() < 2")
    notebook.turn("use-requests", "PageUp", 2)
    page.wait_for_function(f"() => ({GAUGE})() > 2")
    notebook.looks("02_gauges", panel)
    page.locator(f"{panel} .llmlab-use-where select").first.select_option("this machine, real")
    notebook.wait_status(panel, "Run serves")
    notebook.press("use-run")
    notebook.wait_status(panel, "Measured on this machine", 60_000)
    notebook.shot("02_gauges_real", panel)


def test_the_roofline_lab_measures_and_its_knobs_move_the_points(jupyter, notebook):
    notebook.open(jupyter, "02_roofline.ipynb")
    notebook.run_all()
    page = notebook.page
    page.locator(".llmlab-roofline-panel").wait_for(timeout=30_000)
    before = intensity(page)
    notebook.turn("roofline-batch", "PageUp", 3)
    page.wait_for_function(
        """b => document.querySelector('.llmlab-roofline-panel .js-plotly-plot')._fullData
           .find(d => d.name === 'decode').x[0] > b""",
        arg=before,
        timeout=15_000,
    )
    assert "Simulated" in page.locator(".llmlab-roofline-panel [role=status]").first.inner_text()
    notebook.looks("02_panel", ".llmlab-roofline-panel")
    the_gauges_follow(notebook)
    assert notebook.solve_worksheets() == ["C3.ridge"]
    notebook.looks("02_worksheet", ".llmlab-worksheet")
    assert notebook.outside == []
    assert notebook.noise() == []

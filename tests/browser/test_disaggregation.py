"""Lab 08 in a real browser: two processes run, pools against replicas, a limit by keyboard."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

# A busy machine draws figures late.
DRAWN = """() => [...document.querySelectorAll('.js-plotly-plot')]
  .every(g => (g._fullData || []).length > 0)"""


def test_the_disaggregation_lab_moves_bytes_and_a_limit_moves_by_keyboard(jupyter, notebook):
    notebook.open(jupyter, "08_disaggregation.ipynb")
    notebook.run_all(timeout=240)
    text = "".join(
        "".join(output.get("text", "")) or str(output.get("data", {}).get("text/plain", ""))
        for cell in notebook.cells()
        if cell["cell_type"] == "code"
        for output in cell["outputs"]
    )
    assert "same tokens as one ordinary engine: True" in text
    page = notebook.page
    page.locator(".llmlab-pools-panel").wait_for(timeout=30_000)
    page.wait_for_function(DRAWN, timeout=90_000)
    said = "() => document.querySelector('.llmlab-pools-panel [role=status]').innerText"
    before = page.evaluate(said)
    assert before.startswith("○ Simulated. At")
    handle = page.locator(".llmlab-pools-tpot-slider .noUi-handle").first
    handle.scroll_into_view_if_needed()
    handle.focus()
    for _ in range(3):
        page.keyboard.press("PageUp")
    page.wait_for_function(f"b => ({said})() !== b", arg=before, timeout=15_000)
    drawn = page.evaluate(
        """() => document.querySelector('.llmlab-pools-panel .js-plotly-plot')._fullData
           .map(d => d.x.length)"""
    )
    assert drawn == [3] * 6
    for width in (1280, 768):
        page.set_viewport_size({"width": width, "height": 1000})
        for theme in ("Light", "Dark"):
            notebook.theme(f"JupyterLab {theme}")
            notebook.shot(f"08_panel_{theme.lower()}_{width}", ".llmlab-pools-panel")
            notebook.shot(f"08_transfer_{theme.lower()}_{width}", ".js-plotly-plot")
    assert notebook.outside == []
    assert notebook.noise() == []

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
    notebook.turn("pools-tpot", "PageUp", 3)
    page.wait_for_function(f"b => ({said})() !== b", arg=before, timeout=15_000)
    drawn = page.evaluate(
        """() => document.querySelector('.llmlab-pools-panel .js-plotly-plot')._fullData
           .map(d => d.x.length)"""
    )
    assert drawn == [3] * 6
    notebook.looks("08_panel", ".llmlab-pools-panel")
    notebook.looks("08_transfer", ".js-plotly-plot")
    assert notebook.solve_worksheets() == ["C7.kv-per-token"]
    assert notebook.say_how_sure() == 1
    notebook.looks("08_quiz", ".llmlab-quiz")
    assert notebook.outside == []
    assert notebook.noise() == []

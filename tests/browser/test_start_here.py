"""Lab 00 in a real browser: it meets the machine, and the first panel answers the keyboard."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]


def test_the_start_lab_meets_the_machine_and_its_panel_answers(jupyter, notebook):
    notebook.open(jupyter, "00_start_here.ipynb")
    notebook.run_all()
    notebook.page.locator(".llmlab-knob-panel").wait_for(timeout=30_000)
    notebook.turn("output-tokens")
    notebook.wait_status(".llmlab-knob-panel", "✓ From")
    notebook.page.wait_for_function(  # the run from code, and the knob's; drawn late if busy
        """() => { const plot = document.querySelector('.llmlab-knob-panel .js-plotly-plot');
          return !!plot?._fullData?.length && plot._fullData.every(d => d.x.length === 2); }""",
        timeout=30_000,
    )
    notebook.looks("00_knobs", ".llmlab-knob-panel")
    shown = " ".join(str(c.get("outputs", "")) for c in notebook.cells())
    assert "GB/s" in shown
    assert "not answered yet" in shown
    assert notebook.outside == []
    assert notebook.noise() == []

"""Lab 05 in a real browser: a knob's move lengthens the chats' gaps, and verdicts line up."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

PANEL = ".llmlab-chunk-panel"
LONGEST = """p => { const plots = [...document.querySelectorAll(p + ' .js-plotly-plot')];
  const strip = plots.find(g => g._fullData.some(d => d.meta === 'chat'));
  return Math.max(...strip._fullData.find(d => d.meta === 'chat').y); }"""


def test_the_chunk_knob_moves_the_chats_gaps(jupyter, notebook):
    notebook.open(jupyter, "05_chunked_prefill.ipynb")
    notebook.run_all()
    page = notebook.page
    page.locator(PANEL).wait_for(timeout=30_000)
    before = page.evaluate(LONGEST, PANEL)
    notebook.turn("chunk-budget", "PageUp", 3)
    page.wait_for_function(f"([p, b]) => ({LONGEST})(p) > b", arg=[PANEL, before], timeout=15_000)
    notebook.wait_status(PANEL, "Simulated")
    rows = page.locator(f"{PANEL} table").first.inner_text()
    assert "✗ fails" in rows
    assert "simulated" in rows
    notebook.looks("05_chunk", PANEL)
    assert notebook.outside == []
    assert notebook.noise() == []

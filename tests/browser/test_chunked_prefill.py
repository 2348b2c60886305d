"""Lab 05 in a real browser: a knob's move lengthens the chats' gaps, and verdicts line up.

A real trial, small, takes its place beside them.
"""

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
    notebook.wait_drawn(PANEL)
    before = page.evaluate(LONGEST, PANEL)
    notebook.turn("chunk-budget", "PageUp", 3)
    page.wait_for_function(f"([p, b]) => ({LONGEST})(p) > b", arg=[PANEL, before], timeout=15_000)
    notebook.wait_status(PANEL, "Simulated")
    rows = page.locator(f"{PANEL} table").first.inner_text()
    assert "✗ fails" in rows
    assert "simulated" in rows
    notebook.looks("05_chunk", PANEL)

    # The same knobs for real: the mix is scaled, and the row says so.
    page.locator(".llmlab-chunk-where select").first.select_option("this machine, real")
    notebook.wait_status(PANEL, "Run serves")
    page.locator(".llmlab-chunk-documents-box input").first.fill("0")
    page.keyboard.press("Enter")
    notebook.press("chunk-run")
    notebook.wait_status(PANEL, "Measured on this machine", 90_000)
    assert "real, scaled" in page.locator(f"{PANEL} table").first.inner_text()
    notebook.shot("05_chunk_real", PANEL)
    assert len(notebook.solve_worksheets()) == 3
    assert notebook.outside == []
    assert notebook.noise() == []

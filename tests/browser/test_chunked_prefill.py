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
    handle = page.locator(".llmlab-chunk-budget-slider .noUi-handle").first
    handle.scroll_into_view_if_needed()
    handle.focus()
    for _ in range(3):
        page.keyboard.press("PageUp")
    page.wait_for_function(f"([p, b]) => ({LONGEST})(p) > b", arg=[PANEL, before], timeout=15_000)
    assert "Simulated" in page.locator(f"{PANEL} [role=status]").first.inner_text()
    rows = page.locator(f"{PANEL} table").first.inner_text()
    assert "✗ fails" in rows
    assert "simulated" in rows
    for width in (1280, 768):
        page.set_viewport_size({"width": width, "height": 1000})
        for theme in ("Light", "Dark"):
            notebook.theme(f"JupyterLab {theme}")
            notebook.shot(f"05_chunk_{theme.lower()}_{width}", PANEL)
    assert notebook.outside == []
    assert notebook.noise() == []

"""Lab 03 in a real browser: the map follows Step, Add, Abort and the prefix cache."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

PANEL = ".llmlab-block-panel"
SIGNS = """p => document.querySelector(p + ' .js-plotly-plot')._fullData
           .find(d => d.name === 'sign').text.map(t => t.replace(/<[^>]*>/g, ''))"""


def press(notebook, name: str, said: str) -> None:
    """A button by keyboard, and the status that has to follow."""
    notebook.press(f"block-{name}")
    notebook.wait_status(PANEL, said)


def wait_signs(page, test: str) -> None:
    page.wait_for_function(f"p => {{ const s = ({SIGNS})(p); return {test}; }}", arg=PANEL)


def test_the_block_map_fills_shares_and_frees(jupyter, notebook):
    notebook.open(jupyter, "03_kv_cache.ipynb")
    notebook.run_all()
    page = notebook.page
    page.locator(f"{PANEL} .js-plotly-plot").wait_for(timeout=30_000)

    press(notebook, "step", "Step 1 computed A 14")
    wait_signs(page, "s.filter(t => t === 'A').length === 4")

    # The prefix cache starts afresh; then two requests share what begins alike.
    page.locator(f"{PANEL} .llmlab-block-prefix input").first.focus()
    page.keyboard.press("Space")
    notebook.wait_status(PANEL, "prefix cache on")
    press(notebook, "add", "A waits")
    press(notebook, "step", "Step 1 computed A 14")
    press(notebook, "add", "B waits")
    press(notebook, "step", "found in the cache")
    wait_signs(page, "s.filter(t => t === 'A+B').length === 2")
    page.set_viewport_size({"width": 768, "height": 1000})
    notebook.shot("03_shared_768", PANEL)
    press(notebook, "add", "C waits")
    press(notebook, "abort", "A aborted")
    wait_signs(page, "s.includes('◇') && !s.includes('A')")
    notebook.looks("03_blocks", PANEL)

    # A knob by keyboard: another pool, empty.
    notebook.turn("block-pool")
    wait_signs(page, "s.length === 25 && s.every(t => t === '·')")
    assert notebook.solve_worksheets() == ["C4.tokens"]
    assert notebook.outside == []
    assert notebook.noise() == []

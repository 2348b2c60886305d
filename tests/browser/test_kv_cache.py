"""Lab 03 in a real browser: the map follows Step, Add, Abort and the prefix cache."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

PANEL = ".llmlab-block-panel"
SIGNS = """p => document.querySelector(p + ' .js-plotly-plot')._fullData
           .find(d => d.name === 'sign').text.map(t => t.replace(/<[^>]*>/g, ''))"""


def press(page, name: str, said: str) -> None:
    """A button by keyboard, and the status that has to follow."""
    button = page.locator(f"{PANEL} .llmlab-block-{name}").first
    button.scroll_into_view_if_needed()
    button.focus()
    page.keyboard.press("Enter")
    wait_status(page, said)


def wait_status(page, said: str) -> None:
    page.wait_for_function(
        "([p, s]) => document.querySelector(p + ' [role=status]').innerText.includes(s)",
        arg=[PANEL, said],
        timeout=15_000,
    )


def wait_signs(page, test: str) -> None:
    page.wait_for_function(f"p => {{ const s = ({SIGNS})(p); return {test}; }}", arg=PANEL)


def test_the_block_map_fills_shares_and_frees(jupyter, notebook):
    notebook.open(jupyter, "03_kv_cache.ipynb")
    notebook.run_all()
    page = notebook.page
    page.locator(f"{PANEL} .js-plotly-plot").wait_for(timeout=30_000)

    press(page, "step", "Step 1 computed A 14")
    wait_signs(page, "s.filter(t => t === 'A').length === 4")

    # The prefix cache starts afresh; then two requests share what begins alike.
    page.locator(f"{PANEL} .llmlab-block-prefix input").first.focus()
    page.keyboard.press("Space")
    wait_status(page, "prefix cache on")
    press(page, "add", "A waits")
    press(page, "step", "Step 1 computed A 14")
    press(page, "add", "B waits")
    press(page, "step", "found in the cache")
    wait_signs(page, "s.filter(t => t === 'A+B').length === 2")
    page.set_viewport_size({"width": 768, "height": 1000})
    notebook.shot("03_shared_768", PANEL)
    press(page, "add", "C waits")
    press(page, "abort", "A aborted")
    wait_signs(page, "s.includes('◇') && !s.includes('A')")
    for width in (1280, 768):
        page.set_viewport_size({"width": width, "height": 1000})
        for theme in ("Light", "Dark"):
            notebook.theme(f"JupyterLab {theme}")
            notebook.shot(f"03_blocks_{theme.lower()}_{width}", PANEL)

    # A knob by keyboard: another pool, empty.
    handle = page.locator(".llmlab-block-pool-slider .noUi-handle").first
    handle.focus()
    page.keyboard.press("ArrowRight")
    wait_signs(page, "s.length === 25 && s.every(t => t === '·')")
    assert notebook.outside == []
    assert notebook.noise() == []

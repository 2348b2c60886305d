"""Lab 10 in a real browser: every cell runs, and the programs' walk follows its knobs."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

PANEL = ".llmlab-grid-panel"
READ = """p => (document.querySelector(p + ' .js-plotly-plot')._fullData ?? [])
          .find(d => d.name === 'read') ?? {x: [], y: []}"""


def press(page, knob: str, key: str, said: str, times: int = 1) -> None:
    """A slider by keyboard, and what the status has to say then."""
    handle = page.locator(f"{PANEL} .llmlab-grid-{knob}-slider .noUi-handle").first
    handle.scroll_into_view_if_needed()
    handle.focus()
    for _ in range(times):
        page.keyboard.press(key)
    page.wait_for_function(
        "([p, s]) => document.querySelector(p + ' [role=status]').innerText.includes(s)",
        arg=[PANEL, said],
        timeout=15_000,
    )


def wait_tokens(page, tokens: int) -> None:
    """The stretches that are drawn add up to the context."""
    page.wait_for_function(
        f"([p, n]) => ({READ})(p).x.reduce((a, b) => a + b, 0) === n",
        arg=[PANEL, tokens],
        timeout=15_000,
    )


def test_the_walk_follows_its_knobs(jupyter, notebook):
    notebook.open(jupyter, "10_triton.ipynb")
    notebook.run_all()
    page = notebook.page
    page.locator(f"{PANEL} .js-plotly-plot").wait_for(timeout=30_000)
    wait_tokens(page, 23)

    press(page, "splits", "ArrowRight", "48 programs", times=2)
    page.wait_for_function(f"p => new Set(({READ})(p).y).size === 3", arg=PANEL, timeout=15_000)
    press(page, "page", "ArrowRight", "23 tokens in 5 blocks")
    press(page, "context", "ArrowRight", "24 tokens in 5 blocks")
    wait_tokens(page, 24)
    press(page, "request", "ArrowLeft", "Request A: 9 tokens")
    press(page, "request", "ArrowRight", "Request B: 24 tokens")

    text = "".join(str(cell.get("outputs", "")) for cell in notebook.cells())
    assert "Counted in the interpreter" in text
    assert "Compiled, not run" in text
    assert text.count("not answered yet") >= 5
    for width in (1280, 768):
        page.set_viewport_size({"width": width, "height": 1000})
        for theme in ("Light", "Dark"):
            notebook.theme(f"JupyterLab {theme}")
            notebook.shot(f"10_grid_{theme.lower()}_{width}", PANEL)
    assert notebook.outside == []
    assert notebook.noise() == []

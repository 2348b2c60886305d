"""Lab 10 in a real browser: every cell runs, and the programs' walk follows its knobs."""

from __future__ import annotations

import time

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

PANEL = ".llmlab-grid-panel"
READ = """p => (document.querySelector(p + ' .js-plotly-plot')._fullData ?? [])
          .find(d => d.name === 'read') ?? {x: [], y: []}"""


def wait_drawn(page, tokens: int, programs: int) -> None:
    """The stretches that are drawn add up to the context, in a row for each program."""
    end, drawn = time.monotonic() + 40, {}
    while time.monotonic() < end:
        drawn = page.evaluate(
            f"p => {{ const d = ({READ})(p); return {{x: Array.from(d.x), y: Array.from(d.y)}}; }}",
            PANEL,
        )
        if sum(drawn["x"]) == tokens and len(set(drawn["y"])) == programs:
            return
        time.sleep(0.3)
    pytest.fail(f"{tokens} tokens of {programs} programs should be drawn, but there is {drawn}")


def test_the_walk_follows_its_knobs(jupyter, notebook):
    notebook.open(jupyter, "10_triton.ipynb")
    notebook.run_all()
    page = notebook.page
    page.locator(f"{PANEL} .js-plotly-plot").wait_for(timeout=40_000)
    wait_drawn(page, 23, 1)

    for knob, key, times, said in (
        ("splits", "ArrowRight", 2, "48 programs"),
        ("page", "ArrowRight", 1, "23 tokens in 5 blocks"),
        ("context", "ArrowRight", 1, "24 tokens in 5 blocks"),
        ("request", "ArrowLeft", 1, "Request A: 9 tokens"),
        ("request", "ArrowRight", 1, "Request B: 24 tokens"),
    ):
        notebook.turn(f"grid-{knob}", key, times)
        notebook.wait_status(PANEL, said)
    wait_drawn(page, 24, 3)

    text = "".join(str(cell.get("outputs", "")) for cell in notebook.cells())
    assert "Counted in the interpreter" in text
    assert "Compiled, not run" in text
    assert text.count("not answered yet") >= 5
    notebook.looks("10_grid", PANEL)
    assert notebook.say_how_sure() == 1
    assert notebook.outside == []
    assert notebook.noise() == []

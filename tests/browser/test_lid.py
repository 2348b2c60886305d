"""Rough hands and a closed lid: mistyped boxes, a page opened anew, a kernel restarted."""

from __future__ import annotations

import json

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

CELLS = [
    "from llmlab.engine import Engine, load_model\n"
    "from llmlab.viz.panels import KnobPanel, RequestPanel, WorksheetPanel\n"
    "engine = Engine(load_model('tiny'))",
    "RequestPanel(engine, 'hello', max_tokens=200)",
    "KnobPanel(engine, most=128)",
    "WorksheetPanel('b11')",
]
WRITE = """cells => window.jupyterapp.serviceManager.contents.save('lid.ipynb', {type: 'notebook',
  format: 'json', content: {nbformat: 4, nbformat_minor: 5,
  metadata: {kernelspec: {name: 'python3', display_name: 'Python 3', language: 'python'}},
  cells: cells.map((source, i) => ({cell_type: 'code', id: 'c' + i, source, metadata: {},
    outputs: [], execution_count: null}))}})"""
RESTART = (
    "window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart().then(() => 1)"
)
SAVE = "window.jupyterapp.commands.execute('docmanager:save')"
DRAWN = """() => [...document.querySelectorAll('.js-plotly-plot')].map(g => JSON.stringify(
  [g._fullLayout.title.text, g.data.map(t => [...(t.x ?? []), ...(t.y ?? [])])]))"""
SAYS = "e => getComputedStyle(e, '::after').content"


def test_a_panel_survives_rough_hands_and_a_restarted_kernel(jupyter, notebook):
    page = notebook.page
    notebook.open(jupyter, "00_start_here.ipynb")
    page.evaluate(WRITE, CELLS)
    notebook.open(jupyter, "lid.ipynb")
    notebook.run_all()
    page.locator(".llmlab-worksheet").first.wait_for()

    # Letters, too much, too little: the box holds a number that is allowed.
    box = page.locator(".llmlab-prompt-tokens-box input").first
    for typed in ("abc", "99999", "-5"):
        box.fill("")
        box.type(typed)
        box.press("Tab")
        page.wait_for_timeout(300)
        assert 8 <= int(box.input_value()) <= 128
    notebook.wait_status(".llmlab-knob-panel", "✓")

    # Run three times at once while the other panel's request is running.
    run = page.locator("button.llmlab-run").first
    page.evaluate("b => { for (let i = 0; i < 3; i++) b.click() }", run.element_handle())
    notebook.press("knob-run")
    notebook.wait_status(".llmlab-request-panel", "✓ Done")
    notebook.wait_status(".llmlab-knob-panel", "✓")

    # The page is opened anew, the kernel lives on: its figures are the newest, not the first ones.
    before = page.evaluate(DRAWN)
    assert len(before) >= 2
    page.evaluate(SAVE)
    notebook.open(jupyter, "lid.ipynb")
    page.wait_for_function(
        f"then => JSON.stringify(({DRAWN})()) === then",
        arg=json.dumps(before, separators=(",", ":"), ensure_ascii=False),
    )

    # An answer, then a restart: the panel says what to do, and its cell brings all back.
    answer = page.locator(".llmlab-answer-B11-ttft input").first
    answer.fill("400 ms")
    answer.press("Tab")
    page.locator(".llmlab-check-B11-ttft").first.click()
    page.wait_for_function(
        "() => document.querySelector('.llmlab-result-B11-ttft').innerText.includes(' correct')"
    )
    page.evaluate(RESTART)
    panels = (".llmlab-request-panel", ".llmlab-knob-panel", ".llmlab-worksheet")
    for panel in panels:
        page.wait_for_selector(f"{panel}.jupyter-widgets-disconnected")
        assert "run its cell again" in page.locator(panel).first.evaluate(SAYS)
    notebook.run_all()
    page.wait_for_function(
        "() => document.querySelector('.llmlab-result-B11-ttft')?.innerText.includes(' correct')"
    )
    for panel in panels:
        assert page.locator(panel).first.evaluate(SAYS) == "none"
    notebook.press("run")
    notebook.wait_status(".llmlab-request-panel", "✓ Done")
    assert notebook.noise() == []

"""Lab 09 in a real browser: a server from outside, two figures, answers by keyboard, shut down."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
SHOTS = Path(__file__).parent / "shots"


def outputs(notebook) -> str:
    """All plain text that the notebook's cells have put out."""
    return "\n".join(
        str(out.get("text") or out.get("data", {}).get("text/plain"))
        for cell in notebook.cells()
        for out in cell.get("outputs", [])
    )


def test_the_hosted_lab_measures_bills_and_shuts_its_server_down(jupyter, notebook):
    notebook.open(jupyter, "09_hosted_api.ipynb")
    notebook.run_all()
    page = notebook.page
    said = outputs(notebook)
    assert "tiny at http://127.0.0.1:" in said
    assert "✓ the server has ended" in said
    assert "made-up example prices" in said
    page.locator(".js-plotly-plot").nth(3).wait_for(timeout=30_000)
    drawn = page.evaluate(
        """() => [...document.querySelectorAll('.js-plotly-plot')]
           .map(g => g._fullData.map(d => d.x.length))"""
    )
    assert drawn == [[6] * 4, [6] * 4, [4] * 4, [3] * 2]

    assert len(notebook.solve_worksheets()) == 2
    SHOTS.mkdir(exist_ok=True)
    for theme in ("Light", "Dark"):
        notebook.theme(f"JupyterLab {theme}")
        for width in (1280, 768):
            page.set_viewport_size({"width": width, "height": 1000})
            page.wait_for_timeout(400)
            for number, name in ((0, "parts"), (2, "burst"), (3, "trials")):
                figure = page.locator(".js-plotly-plot").nth(number)
                figure.scroll_into_view_if_needed()
                figure.screenshot(path=str(SHOTS / f"09_{name}_{theme.lower()}_{width}.png"))
    assert notebook.outside == []
    assert notebook.noise() == []

"""What all panels share: a panel without a kernel says what to do."""

from __future__ import annotations

import pytest

from llmlab.viz.panels.block_panel import BlockPanel
from llmlab.viz.panels.controls import LOST, status_html
from llmlab.viz.panels.grid_panel import GridPanel
from llmlab.viz.panels.quiz_panel import QuizPanel
from llmlab.viz.panels.roofline_panel import RooflinePanel
from llmlab.viz.panels.worksheet_panel import WorksheetPanel


def words(widget) -> str:
    """All text below a widget."""
    return str(getattr(widget, "value", "")) + "".join(map(words, getattr(widget, "children", ())))


@pytest.mark.parametrize(
    "make",
    [
        BlockPanel,
        GridPanel,
        lambda: QuizPanel(topic="B5"),
        RooflinePanel,
        lambda: WorksheetPanel("b11"),
    ],
)
def test_every_panel_carries_the_words_for_a_kernel_that_is_gone(make, tmp_path, monkeypatch):
    """The page's own mark for it (`jupyter-widgets-disconnected`) is seen in browser/test_lid."""
    monkeypatch.setenv("LLMLAB_DATA_DIR", str(tmp_path))
    widget = make().widget
    assert any(name.startswith("llmlab-") for name in widget._dom_classes)
    assert LOST in words(widget)


def test_a_status_is_escaped_and_says_its_kind_by_a_sign():
    assert "✗ &lt;b&gt;" in status_html("error", "<b>")
    assert 'role="status"' in status_html("ok", "x")

"""What all panels share: a panel without a kernel says what to do."""

from __future__ import annotations

import pytest

from llmlab.viz.panels.block_panel import BlockPanel
from llmlab.viz.panels.controls import LOST, status_html
from llmlab.viz.panels.grid_panel import GridPanel
from llmlab.viz.panels.load_panel import LoadPanel
from llmlab.viz.panels.pools_panel import PoolsPanel
from llmlab.viz.panels.quiz_panel import QuizPanel
from llmlab.viz.panels.roofline_panel import RooflinePanel
from llmlab.viz.panels.worksheet_panel import WorksheetPanel


def words(widget) -> str:
    """All text below a widget."""
    return str(getattr(widget, "value", "")) + "".join(map(words, getattr(widget, "children", ())))


def test_every_panel_carries_the_words_for_a_kernel_that_is_gone(tmp_path, monkeypatch):
    """The page's own mark for it (`jupyter-widgets-disconnected`) is seen in browser/test_lid."""
    monkeypatch.setenv("LLMLAB_DATA_DIR", str(tmp_path))
    for panel in (
        BlockPanel(),
        GridPanel(),
        QuizPanel(topic="B5"),
        RooflinePanel(),
        WorksheetPanel("b11"),
    ):
        assert any(name.startswith("llmlab-") for name in panel.widget._dom_classes), panel
        assert LOST in words(panel.widget), panel


def test_a_name_that_is_not_in_the_catalog_is_answered_with_those_that_are():
    for panel, name, known in (
        (LoadPanel, "model", "llama"),
        (LoadPanel, "hardware", "h100"),
        (RooflinePanel, "model", "llama"),
        (RooflinePanel, "hardware", "h100"),
        (PoolsPanel, "interconnect", "nvlink"),
    ):
        with pytest.raises(ValueError, match=f"{name} = 'nope': must be one of .*{known}"):
            panel(**{name: "nope"})


def test_a_status_is_escaped_and_says_its_kind_by_a_sign():
    assert "✗ &lt;b&gt;" in status_html("error", "<b>")
    assert 'role="status"' in status_html("ok", "x")

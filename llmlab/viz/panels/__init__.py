"""Panels: one a file. Each shows a live view, and works from code without widgets too."""

from llmlab.viz.panels.block_panel import BlockPanel
from llmlab.viz.panels.chunk_panel import ChunkPanel
from llmlab.viz.panels.knob_panel import KnobPanel
from llmlab.viz.panels.load_panel import LoadPanel
from llmlab.viz.panels.pools_panel import PoolsPanel
from llmlab.viz.panels.quiz_panel import QuizPanel
from llmlab.viz.panels.race_panel import RacePanel
from llmlab.viz.panels.request_panel import RequestPanel, show_request
from llmlab.viz.panels.roofline_panel import RooflinePanel
from llmlab.viz.panels.utilization_panel import UtilizationPanel
from llmlab.viz.panels.worksheet_panel import WorksheetPanel

__all__ = [
    "BlockPanel",
    "ChunkPanel",
    "KnobPanel",
    "LoadPanel",
    "PoolsPanel",
    "QuizPanel",
    "RacePanel",
    "RequestPanel",
    "RooflinePanel",
    "UtilizationPanel",
    "WorksheetPanel",
    "show_request",
]

"""A kernel without widgets, as some hosted notebooks are: tables, text and still figures suffice.

The two packages are blocked in a fresh process, so the result does not depend on what is
installed. Plain IPython, too: nothing of JupyterLab runs here.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.labs.cells import run_cells

ROOT = Path(__file__).resolve().parents[2]
SOLUTIONS = ROOT / "solutions"
LIVE = "application/vnd.jupyter.widget-view+json"
STILL = "application/vnd.plotly.v1+json"


LABS = {"03_kv_cache": "slow", "11_interview": "slow", "01_two_phases": "full", "06_load": "full"}


@pytest.mark.parametrize(
    "name", [pytest.param(lab, marks=getattr(pytest.mark, mark)) for lab, mark in LABS.items()]
)
def test_a_lab_is_done_without_any_widget(name, tmp_path):
    seen = run_cells(SOLUTIONS / f"{name}.ipynb", tmp_path, "ipywidgets", "anywidget")
    assert set(seen.states) == {"correct"}
    kinds = {kind for cell in seen.cells for kind in cell["kinds"]}
    assert LIVE not in kinds
    shown = [cell for cell in seen.cells if "text/html" in cell["kinds"]]
    assert shown
    assert all("<caption" in c["html"] for c in shown if STILL in c["kinds"])
    assert (STILL in kinds) == (name != "11_interview")


@pytest.mark.slow
def test_widgets_without_live_figures_still_show_their_tables(tmp_path):
    seen = run_cells(SOLUTIONS / "04_batching.ipynb", tmp_path, "anywidget")
    kinds = [set(cell["kinds"]) for cell in seen.cells if cell["kinds"]]
    assert any(STILL in found for found in kinds)  # a figure of its own
    assert any(LIVE in found for found in kinds)  # a panel: knobs and table
    assert set(seen.states) == {"correct"}


def test_no_lab_uses_a_magic_a_shell_line_or_a_front_end_s_own_call():
    """What works in one front end only: magics, shell lines, HTML scripts, JupyterLab's app."""
    own = re.compile(r"^\s*[%!?]|get_ipython\(|jupyterapp|google\.colab|<script", re.MULTILINE)
    built = [*(ROOT / "labs").glob("[0-9]*.ipynb"), *SOLUTIONS.glob("[0-9]*.ipynb")]
    assert built
    for path in built:
        notebook = json.loads(path.read_text())
        assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                assert not own.search("".join(cell["source"])), (path.stem, cell["id"])

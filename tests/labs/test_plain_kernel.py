"""A kernel without widgets, as some hosted notebooks are: tables, text and still figures suffice.

The two packages are blocked in a fresh process, so the result does not depend on what is
installed. Plain IPython, too: nothing of JupyterLab runs here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIVE = "application/vnd.jupyter.widget-view+json"
STILL = "application/vnd.plotly.v1+json"

RUN = """
import json, sys
for name in sys.argv[3].split():
    sys.modules[name] = None  # importing it is an ImportError from now on
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
seen = []
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        done = shell.run_cell("".join(cell["source"]), store_history=False, silent=False)
        done.raise_error()
        bundle = getattr(done.result, "_repr_mimebundle_", lambda: None)()
        seen.append({
            "state": getattr(done.result, "state", None),
            "kinds": sorted(bundle or {}),
            "html": (bundle or {}).get("text/html", ""),
        })
json.dump(seen, open(sys.argv[2], "w"))
"""


def run_without(missing: str, name: str, tmp_path: Path) -> list[dict]:
    """Run a solution with packages blocked; state, kinds of output and HTML of every code cell."""
    (tmp_path / "run.py").write_text(RUN)
    out = tmp_path / "seen.json"
    environment = {
        **os.environ,
        "LLMLAB_FAST": "1",
        "LLMLAB_DATA_DIR": str(tmp_path / "progress"),
        "PYTHONWARNINGS": "ignore",
    }
    environment.pop("PYTEST_CURRENT_TEST", None)
    solution = ROOT / "solutions" / f"{name}.ipynb"
    done = subprocess.run(
        [sys.executable, "run.py", str(solution), str(out), missing],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
    return json.loads(out.read_text())


LABS = {"03_kv_cache": "slow", "11_interview": "slow", "01_two_phases": "full", "06_load": "full"}


@pytest.mark.parametrize(
    "name", [pytest.param(lab, marks=getattr(pytest.mark, mark)) for lab, mark in LABS.items()]
)
def test_a_lab_is_done_without_any_widget(name, tmp_path):
    seen = run_without("ipywidgets anywidget", name, tmp_path)
    states = {cell["state"] for cell in seen if cell["state"]}
    assert states == {"correct"}
    kinds = {kind for cell in seen for kind in cell["kinds"]}
    assert LIVE not in kinds
    shown = [cell for cell in seen if "text/html" in cell["kinds"]]
    assert shown
    assert all("<caption" in c["html"] for c in shown if STILL in c["kinds"])
    assert (STILL in kinds) == (name != "11_interview")


@pytest.mark.slow
def test_widgets_without_live_figures_still_show_their_tables(tmp_path):
    seen = run_without("anywidget", "04_batching", tmp_path)
    kinds = [set(cell["kinds"]) for cell in seen if cell["kinds"]]
    assert any(STILL in found for found in kinds)  # a figure of its own
    assert any(LIVE in found for found in kinds)  # a panel: knobs and table
    assert {cell["state"] for cell in seen if cell["state"]} == {"correct"}


def test_no_lab_uses_a_magic_a_shell_line_or_a_front_end_s_own_call():
    """What works in one front end only: magics, shell lines, HTML scripts, JupyterLab's app."""
    own = re.compile(r"^\s*[%!?]|get_ipython\(|jupyterapp|google\.colab|<script", re.MULTILINE)
    built = [*(ROOT / "labs").glob("[0-9]*.ipynb"), *(ROOT / "solutions").glob("[0-9]*.ipynb")]
    assert built
    for path in built:
        notebook = json.loads(path.read_text())
        assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                assert not own.search("".join(cell["source"])), (path.stem, cell["id"])

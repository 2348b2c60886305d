"""What is shipped is what the source says. `make notebooks` runs all of it and reads the scores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmlab.labs.build import build
from tests.labs.scores import faults

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "labs" / "source").glob("[0-9]*.py"))

RUN = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
states = []
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        done = shell.run_cell("".join(cell["source"]), store_history=False, silent=False)
        done.raise_error()
        state = getattr(done.result, "state", None)
        if state:
            states.append(state)
json.dump(states, open(sys.argv[2], "w"))
"""


def states_of(notebook: Path, tmp_path: Path) -> list[str]:
    """Run a notebook's cells in a fresh process; the states of the checks they end in."""
    script, out = tmp_path / "run.py", tmp_path / "states.json"
    script.write_text(RUN)
    environment = {
        **os.environ,
        "LLMLAB_FAST": "1",
        "LLMLAB_DATA_DIR": str(tmp_path / "progress"),
        "MPLBACKEND": "agg",
    }
    environment.pop("PYTEST_CURRENT_TEST", None)
    done = subprocess.run(
        [sys.executable, str(script), str(notebook), str(out)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
    return json.loads(out.read_text())


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: p.stem)
def test_the_built_files_are_what_the_source_says(source):
    for folder, data in zip(("labs", "solutions"), build(source), strict=True):
        assert (ROOT / folder / f"{source.stem}.ipynb").read_bytes() == data


@pytest.mark.parametrize(
    ("labs", "solutions", "wrong"),
    [
        (["not answered yet"], ["correct"], 0),
        (["not answered yet", "correct"], ["correct"], 1),
        (["not answered yet"], ["correct", "incorrect"], 1),
        ([], [], 2),
    ],
)
def test_a_lab_that_scores_or_a_solution_that_does_not_is_a_fault(labs, solutions, wrong, tmp_path):
    (tmp_path / "labs.txt").write_text("\n".join(labs))
    (tmp_path / "solutions.txt").write_text("\n".join(solutions))
    assert len(faults(tmp_path)) == wrong


@pytest.mark.slow
def test_a_wrong_solution_fails(tmp_path):
    """The runs above can fail: one changed number in a solution is noticed."""
    notebook = json.loads((ROOT / "solutions" / "01_two_phases.ipynb").read_text())
    for cell in notebook["cells"]:
        text = "".join(cell["source"]).replace('numbers["prefill"]', '0 * numbers["prefill"]')
        cell["source"] = text.splitlines(keepends=True)
    path = tmp_path / "wrong.ipynb"
    path.write_text(json.dumps(notebook))
    assert "incorrect" in states_of(path, tmp_path)

"""A notebook's code cells, run in a fresh process of plain IPython: nothing of JupyterLab runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RUN = """
import json, sys
for name in sys.argv[3:]:
    sys.modules[name] = None  # importing it is an ImportError from now on
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
seen = []
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        done = shell.run_cell("".join(cell["source"]), store_history=False, silent=False)
        done.raise_error()
        bundle = getattr(done.result, "_repr_mimebundle_", lambda: None)() or {}
        seen.append({
            "state": getattr(done.result, "state", None),
            "kinds": sorted(bundle),
            "html": bundle.get("text/html", ""),
        })
json.dump(seen, open(sys.argv[2], "w"))
"""


@dataclass(frozen=True)
class Ran:
    """What the cells ended in: state of a check, kinds of output, HTML; and all they printed."""

    cells: list[dict[str, Any]]
    printed: str

    @property
    def states(self) -> list[str]:
        return [cell["state"] for cell in self.cells if cell["state"]]


def run_cells(notebook: Path, tmp_path: Path, *missing: str) -> Ran:
    """Run a notebook at its small size, as if the packages `missing` were not installed."""
    script, out = tmp_path / "run.py", tmp_path / "seen.json"
    script.write_text(RUN)
    gone = ("PYTEST_CURRENT_TEST", "TRITON_INTERPRET")
    environment = {name: value for name, value in os.environ.items() if name not in gone}
    environment |= {
        "LLMLAB_FAST": "1",
        "LLMLAB_DATA_DIR": str(tmp_path / "progress"),
        "PYTHONWARNINGS": "ignore",
    }
    done = subprocess.run(
        [sys.executable, str(script), str(notebook), str(out), *missing],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
    return Ran(json.loads(out.read_text()), done.stdout)

"""What a wheel carries: the package, the data, the labs; found from where it is installed."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_data_and_labs_travel_in_the_wheel(tmp_path):
    # A copy of what git tracks, so that building leaves nothing in the checkout.
    checkout = tmp_path / "checkout"
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        source = ROOT / name
        if source.is_file():
            target = checkout / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), "."],
        cwd=checkout,
        check=True,
        timeout=200,
    )
    (wheel,) = tmp_path.glob("llmlab-*.whl")
    installed = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    code = (
        "from llmlab.data import data_path, labs_path\n"
        "from llmlab.check import load_worksheet\n"
        "from llmlab.labs.workspace import shipped\n"
        "import llmlab.labs, pathlib\n"
        "assert load_worksheet('b11').items and shipped()\n"
        "assert data_path('hardware.yaml').is_file()\n"
        "page = pathlib.Path(llmlab.labs.__file__).parent / 'jupyter_config/labconfig'\n"
        "assert (page / 'page_config.json').is_file()\n"
        "print(llmlab.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(installed), "PATH": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().startswith(str(installed))

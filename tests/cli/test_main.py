"""The command line from outside: it helps, it says what is wrong, and it stays light."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from llmlab.cli.main import COMMANDS

pytestmark = pytest.mark.slow  # each starts the command as a user does


def llmlab(*args: str, **more) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1", **more.pop("env", {})}
    return subprocess.run(
        [sys.executable, "-m", "llmlab.cli.main", *args],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        **more,
    )


def test_help_names_every_command_in_80_columns():
    text = llmlab("--help").stdout
    assert llmlab().stdout == text, "the bare command says the same"
    assert all(name in text for name in COMMANDS)
    assert max(map(len, text.splitlines())) <= 80
    assert "Examples" in text


HELPS = """
import contextlib, io, json, sys
from llmlab.cli.main import COMMANDS, main

found = {}
for name in COMMANDS:
    sys.argv = ["llmlab", name, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        main()
    found[name] = said.getvalue(), sorted({"torch", "plotly", "ipywidgets"} & set(sys.modules))
print(json.dumps(found))
"""


def test_every_command_has_help_with_an_example_and_loads_no_torch():
    """In one process of its own: what one command loads, the ones after it would show."""
    done = subprocess.run(
        [sys.executable, "-c", HELPS],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1"},
        timeout=60,
        check=True,
    )
    found = json.loads(done.stdout)
    assert set(found) == set(COMMANDS)
    for name, (text, heavy) in found.items():
        assert heavy == [], name
        assert "xample" in text, name
        assert f"llmlab {name}" in text, name


def test_an_unknown_command_is_one_clear_error():
    done = llmlab("labz")
    assert done.returncode == 2
    assert "labz" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_bench_in_the_list_has_its_module_and_its_help():
    from llmlab.bench.__main__ import BENCHES

    for name in BENCHES:
        assert hasattr(importlib.import_module(f"llmlab.bench.{name}"), "main")
    done = llmlab("bench", "nope")
    assert done.returncode == 2
    assert "sched" in done.stderr


def test_labs_are_copied_listed_and_reset(tmp_path):
    work = tmp_path / "my work"
    first = json.loads(llmlab("labs", "--work", str(work), "--json").stdout)
    assert {entry["state"] for entry in first} == {"new"}
    lab = work / "01_two_phases.ipynb"
    lab.write_text("mine")
    again = json.loads(llmlab("labs", "--work", str(work), "--json").stdout)
    assert {e["name"]: e["state"] for e in again}["01_two_phases"] == "yours"
    done = llmlab("labs", "--work", str(work), "--reset", "01_two_phases")
    assert done.returncode == 0
    assert lab.read_text() != "mine"
    assert (work / "01_two_phases.backup-1.ipynb").read_text() == "mine"


def test_resetting_an_unknown_lab_lists_what_there_is(tmp_path):
    done = llmlab("labs", "--work", str(tmp_path), "--reset", "99")
    assert done.returncode == 2
    assert "01_two_phases" in done.stderr


def test_a_release_holds_labs_and_no_solution(tmp_path):
    import zipfile

    target = tmp_path / "labs.zip"
    assert llmlab("labs", "--release", str(target)).returncode == 0
    with zipfile.ZipFile(target) as archive:
        names = archive.namelist()
        assert "labs/01_two_phases.ipynb" in names
        assert not any("solution" in name for name in names)
        assert all(b"### BEGIN" not in archive.read(name) for name in names)


def test_the_series_is_whole():
    done = llmlab("labs", "--check", "--json")
    result = json.loads(done.stdout)
    assert done.returncode == 0, result
    assert [k for k, v in result.items() if k != "labs" and v] == []


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c_ends_with_130_and_no_traceback(tmp_path):
    code = (
        "import time\nfrom llmlab.cli import labs, main\n"
        "labs._copy = lambda *a: (print('started', flush=True), time.sleep(30))\n"
        "import sys\nsys.argv = ['llmlab', 'labs']\nmain.main()"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert running.stdout is not None
    assert running.stdout.readline().strip() == "started"
    time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=20)
    assert running.returncode == 130
    assert "Traceback" not in errors

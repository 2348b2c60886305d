"""What goes wrong on other people's machines: what they see, and that nothing of theirs is lost.

More of the same kind is beside the code it is about: a damaged cache or model in engine/test_load,
a killed kernel in check/test_store, a busy port in serve/test_command.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from llmlab.check.spacing import schedule
from llmlab.check.store import Event, Store

LLMLAB = [sys.executable, "-m", "llmlab.cli.main"]
ATTEMPTS = "from llmlab.check import check\nfor n in range(3): check('B12.gaps', n)"
UNPACK = (
    "import warnings; warnings.simplefilter('always')\n"
    "from llmlab.engine import load_model; print(len(load_model().layers), 'layers')"
)


def in_namespace(script: str, folder: Path, flags: str = "-m") -> str:
    """Run a shell script that may mount, seen by nobody else; returns what it printed."""
    tool = ["unshare", flags] if os.geteuid() == 0 else ["unshare", "-r", flags]
    try:
        able = subprocess.run([*tool, "true"], capture_output=True).returncode == 0
    except OSError:
        able = False
    if not able:
        pytest.skip("needs Linux's unshare, which is not here or not allowed")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LLMLAB_")}
    environment |= {
        "HOME": str(folder), "DISK": str(folder / "disk"), "PYTHON": sys.executable,
        "ATTEMPTS": ATTEMPTS, "UNPACK": UNPACK, "COLUMNS": "80",
    }  # fmt: skip
    (folder / "disk").mkdir()
    done = subprocess.run(
        [*tool, "sh", "-c", script], cwd=folder, env=environment, text=True, timeout=400,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    print(done.stdout)
    assert "Traceback" not in done.stdout
    return done.stdout


@pytest.mark.full
@pytest.mark.timeout(450)
def test_a_full_disk_takes_neither_attempts_nor_the_last_hand_in(tmp_path: Path) -> None:
    said = in_namespace(
        """
        mount -t tmpfs -o size=2m none "$DISK" || { echo no mount; exit; }
        cd "$DISK"; export LLMLAB_DATA_DIR="$DISK/data" LLMLAB_CACHE_DIR="$DISK/cache"
        llmlab() { "$PYTHON" -m llmlab.cli.main "$@"; echo "status $?"; }
        "$PYTHON" -c "$ATTEMPTS"; llmlab report
        dd if=/dev/zero of=fill bs=1k 2>/dev/null
        llmlab report; llmlab report --out /dev/shm --json; llmlab labs; llmlab student Ada
        "$PYTHON" -c "$UNPACK"
        echo kept $(grep -o '"kind": "attempt"' handin-student-own.json | wc -l); ls -A work data
        rm -f /dev/shm/handin-student-own.*
        """,
        tmp_path,
    )
    if "no mount" in said:
        pytest.skip("mounting is not allowed here")
    assert "progress cannot be saved" in said
    assert "error: cannot write" in said
    assert '"attempts": 3' in said, "what was saved before is still read"
    assert "kept 3" in said, "the last hand-in stands"
    assert "choose another with --work" in said
    assert "Set LLMLAB_DATA_DIR to a folder that can be written" in said
    assert "has 0.6 GB free" in " ".join(said.split())
    assert "30 layers" in said, "the model is unpacked in memory"
    assert ".part" not in said, "no half lab is left"


@pytest.mark.full
@pytest.mark.timeout(450)
def test_a_read_only_home_costs_settings_not_the_work(tmp_path: Path) -> None:
    said = in_namespace(
        """
        mount -t tmpfs none "$DISK" || { echo no mount; exit; }
        export HOME="$DISK"; unset XDG_DATA_HOME XDG_CACHE_HOME
        llmlab() { "$PYTHON" -m llmlab.cli.main "$@"; echo "status $?"; }
        "$PYTHON" -c "$ATTEMPTS"
        mount -o remount,ro "$DISK"
        llmlab report --json; llmlab student Ada; (cd "$DISK"; llmlab labs)
        printf 'q\\n' | llmlab quiz
        BROWSER=true timeout 210 "$PYTHON" -m llmlab.cli.main labs --open >log 2>&1 & jupyter=$!
        for i in $(seq 400); do grep -q "is running at" log && break; sleep 0.5; done
        kill $jupyter; wait $jupyter; cat log
        "$PYTHON" -c "$UNPACK"
        """,
        tmp_path,
    )
    if "no mount" in said:
        pytest.skip("mounting is not allowed here")
    assert '"attempts": 3' in said, "attempts from before are still read"
    assert "your name cannot be saved" in said
    assert "cannot write to work" in said
    assert "All answers are kept" not in said
    assert "Your home folder cannot be written" in said
    assert "is running at" in said, "JupyterLab starts all the same"
    assert "LLMLAB_CACHE_DIR" in said
    assert "30 layers" in said


@pytest.mark.slow
def test_without_network_all_but_the_hub_works(tmp_path: Path) -> None:
    code = "from llmlab.engine import load_model\ntry: load_model('owner/model')\n"
    code += "except ValueError as error: print(error)"
    said = in_namespace(f'"$PYTHON" -c "$UNPACK"; "$PYTHON" -c "{code}"', tmp_path, "-n")
    assert "30 layers" in said
    assert "Go online once, or give a local folder" in said


@pytest.mark.slow
def test_a_locale_that_knows_ascii_only_gets_words(tmp_path: Path) -> None:
    plain = os.environ | {"LC_ALL": "C", "LLMLAB_DATA_DIR": str(tmp_path)}
    plain.pop("PYTHONIOENCODING", None)
    strict = plain | {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}  # as an old terminal is
    for environment, command in (
        (plain, ["student", "Zoë"]),
        (strict, ["labs", "--help"]),
        (strict, ["report", "--out", str(tmp_path)]),
    ):
        done = subprocess.run(
            [*LLMLAB, *command], env=environment, capture_output=True, text=True, errors="replace"
        )
        assert done.returncode == 0, done.stderr
    (hand_in,) = tmp_path.glob("handin-zo-*.json")
    assert json.loads(hand_in.read_text(encoding="utf-8"))["student"] == "Zoë"


@pytest.mark.slow
def test_spaces_and_other_alphabets_in_every_path(tmp_path: Path) -> None:
    place = tmp_path / "Übung mit Raum, 演習"
    place.mkdir()
    environment = os.environ | {"LLMLAB_DATA_DIR": str(place / "mein Fortschritt")}
    for command in (["labs", "--json"], ["student", "Ada"], ["report", "--json"]):
        done = subprocess.run(
            [*LLMLAB, *command], cwd=place, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    hand_in = place / json.loads(done.stdout)["file"]
    assert json.loads(hand_in.read_text(encoding="utf-8"))["student"] == "Ada"
    assert (place / "work" / "01_two_phases.ipynb").is_file()


def test_a_clock_that_steps_back_neither_loses_nor_doubles_a_review(tmp_path: Path) -> None:
    """Attempts are kept in the order they came; the schedule goes by their time."""
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    hours = [0, 30, -20, 8]  # a day ahead for a while, then set right
    states = ["correct" if h else "incorrect" for h in hours]
    times = [(noon + timedelta(hours=h)).isoformat() for h in hours]
    events = [Event(f"u{i}", times[i], "attempt", "q", "", {"state": states[i]}) for i in range(4)]
    due = schedule(events, ["q"])
    assert due == schedule(sorted(events, key=lambda e: e.time), ["q"])
    assert due["q"].when > noon + timedelta(hours=30)
    store = Store(tmp_path / "p.db")
    lines = tmp_path / "events.jsonl"
    lines.write_text("".join(json.dumps(e.as_json()) + "\n" for e in events), encoding="utf-8")
    assert store.import_jsonl(lines) == 4
    assert [e.uid for e in store.events()] == ["u0", "u1", "u2", "u3"]

"""JupyterHub in an environment of its own on top of this one, and its proxy from npm."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VENV = Path(os.environ.get("LLMLAB_HUB_VENV", ROOT / ".venv-hub"))
PROXY = "configurable-http-proxy@5.3.0"
FIRST_UID = 61_001


@cache
def separate_python() -> str | None:
    """A Python of this version that any account may run, if we may become other accounts."""
    if os.geteuid() != 0:
        return None
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for name in (os.path.realpath(sys.executable), f"/usr/bin/{version}"):
        code = f"import sys; sys.path.append({sysconfig.get_path('purelib')!r}); import yaml, venv"
        try:
            done = subprocess.run(
                [name, "-c", code], user=FIRST_UID, group=FIRST_UID, cwd="/", capture_output=True
            )
        except OSError:
            continue
        if done.returncode == 0:
            return name
    return None


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    if done.returncode:
        pytest.skip(f"{Path(command[0]).name} {command[1]} failed: {done.stderr[-300:]}")


def hub_tools() -> tuple[Path, Path]:
    """Folder of the hub's commands and path of its proxy, installed once; else a skip."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not here: JupyterHub's proxy is a Node.js program")
    commands = VENV / "bin"
    proxy = VENV / "npm" / "node_modules" / ".bin" / "configurable-http-proxy"
    with open(f"{VENV}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (commands / "llmlab").exists():
            _make_venv(commands)
        if not proxy.exists():
            _run(npm, "install", "--no-audit", "--no-fund", "--prefix", str(VENV / "npm"), PROXY)
    return commands, proxy


def _make_venv(commands: Path) -> None:
    python = separate_python() or sys.executable
    _run(python, "-m", "venv", "--clear", "--without-pip", str(VENV))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    site = next((VENV / "lib").glob("python*")) / "site-packages"
    # The environment under test lies below: what it has is not installed a second time.
    below = sysconfig.get_path("purelib")
    (site / "llmlab_below.pth").write_text(f"import site; site.addsitedir({below!r})\n")
    _run(
        sys.executable, "-m", "pip", "--python", str(commands / "python"), "install", "-q",
        "-c", str(ROOT / "constraints.txt"), *project["optional-dependencies"]["hub"],
    )  # fmt: skip
    for folder in ("etc/jupyter", "share/jupyter"):  # JupyterLab's pages and which extensions run
        place = VENV / folder
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        place.symlink_to(Path(sys.prefix) / folder)
    script = commands / "llmlab"
    script.write_text(f"#!{commands / 'python'}\nfrom llmlab.cli.main import main\nmain()\n")
    script.chmod(0o755)

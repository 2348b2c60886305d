"""guidellm in a virtual environment of its own, made once and kept beside the checkout's.

What the checkout's environment has already, torch above all, is found there: installed again it
would take minutes and gigabytes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VENV = Path(os.environ.get("LLMLAB_GUIDELLM_VENV", ROOT / ".venv-guidellm"))
GUIDELLM = "0.8.1"


def guidellm() -> str:
    """The command's path, installed if need be. If that fails: skipped, but in CI a failure."""
    command = VENV / "bin" / "guidellm"
    VENV.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{VENV}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # workers of one test run share the environment
        if not command.exists():
            _run([sys.executable, "-m", "venv", "--clear", str(VENV)])
            (site,) = VENV.glob("lib/python*/site-packages")
            (site / "checkout.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
            _run([str(VENV / "bin" / "pip"), "install", "-q", f"guidellm=={GUIDELLM}"])
    return str(command)


def _run(step: list[str]) -> None:
    done = subprocess.run(step, capture_output=True, text=True)
    if done.returncode:
        reason = f"guidellm could not be installed: {done.stderr[-300:]}"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)


@contextlib.contextmanager
def mock_server(port: int, **flags: object) -> Iterator[str]:
    """guidellm's mock server with exact times, e.g. ttft_ms=100, itl_ms=10, output_tokens=32."""
    options = {"ttft_ms_std": 0, "itl_ms_std": 0, "output_tokens_std": 0, **flags}
    command = [guidellm(), "mock-server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--model", "m", "--workers", "1"]
    for name, value in options.items():
        command += ["--" + name.replace("_", "-"), str(value)]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{url}/v1/models", timeout=1).close()
                break
            assert process.poll() is None, "the mock server ended"
            assert time.monotonic() < deadline, "the mock server does not answer"
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()

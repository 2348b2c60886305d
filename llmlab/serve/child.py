"""`llmlab serve` as a process of its own, for measurements: no lock is shared with the client."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Child:
    """A running server: where it listens, what it serves, and its process."""

    base_url: str
    model: str
    process: subprocess.Popen[str]


@contextlib.contextmanager
def child_server(options: Sequence[str] = (), *, ready_timeout: float = 180.0) -> Iterator[Child]:
    """Start `llmlab serve --port 0 --json OPTIONS`, wait until it answers, drain it at the end.

    RuntimeError with the child's own words if it does not start. Without LLMLAB_API_KEY in its
    environment: it listens on loopback only.
    """
    command = [sys.executable, "-m", "llmlab.cli.main", "serve", "--port", "0", "--json", *options]
    environment = {k: v for k, v in os.environ.items() if k != "LLMLAB_API_KEY"}
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,  # Ctrl-C reaches the client; it ends the server itself
    )
    try:
        ready = _ready_line(process, ready_timeout)
        yield Child(ready["base_url"], ready["model"], process)
    finally:
        _end(process)


def _ready_line(process: subprocess.Popen[str], timeout: float) -> dict[str, str]:
    assert process.stdout is not None
    assert process.stderr is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        line = process.stdout.readline() if selector.select(timeout) else ""
    if line:
        ready: dict[str, str] = json.loads(line)
        return ready
    late = process.poll() is None
    process.kill()
    said = process.stderr.read().strip()
    what = f"did not answer within {timeout:g} s" if late else "did not start"
    raise RuntimeError(f"the server {what}: {said[-500:] or 'it said nothing'}")


def _end(process: subprocess.Popen[str], patience: float = 45.0) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + patience
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if process.poll() is None:
            process.kill()
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()

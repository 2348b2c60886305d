"""`llmlab serve` as a process of its own, for measurements: no lock is shared with the client."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO

PATIENCE_S = 45.0  # over the server's own drain time, after which it ends by itself


@dataclass(frozen=True)
class Child:
    """A running server: where it listens, what it serves, its process and what that writes."""

    base_url: str
    model: str
    process: subprocess.Popen[str]
    log: IO[str] = field(repr=False)

    def said(self) -> str:
        """All it has written to stderr so far."""
        return _read(self.log)


@contextlib.contextmanager
def child_server(options: Sequence[str] = (), *, ready_timeout: float = 180.0) -> Iterator[Child]:
    """Start `llmlab serve --port 0 --json OPTIONS`, wait until it answers, drain it at the end.

    RuntimeError with the child's own words if it does not start. Without LLMLAB_API_KEY in its
    environment: it listens on loopback only.
    """
    command = [sys.executable, "-m", "llmlab.cli.main", "serve", "--port", "0", "--json", *options]
    environment = {k: v for k, v in os.environ.items() if k != "LLMLAB_API_KEY"}
    # A file, not a pipe: a server that warns a lot must never wait for a reader.
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches the client; it ends the server itself
        )
        try:
            ready = _ready_line(process, log, ready_timeout)
            yield Child(ready["base_url"], ready["model"], process, log)
        finally:
            _end(process)


def _ready_line(process: subprocess.Popen[str], log: IO[str], timeout: float) -> dict[str, str]:
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        line = process.stdout.readline() if selector.select(timeout) else ""
    if line:
        ready: dict[str, str] = json.loads(line)
        return ready
    late = process.poll() is None
    if late:
        process.kill()
    process.wait()
    what = f"did not answer within {timeout:g} s" if late else "did not start"
    raise RuntimeError(f"the server {what}: {_read(log).strip()[-500:] or 'it said nothing'}")


def _read(log: IO[str]) -> str:
    log.seek(0)
    return log.read()


def _end(process: subprocess.Popen[str]) -> None:
    with process:  # waits, and closes the pipe
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()

"""Functions for workers: top-level, so that another process can import them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil


def square(x: int) -> dict[str, int]:
    return {"square": x * x}


def picky(x: int) -> int:
    """7 is refused, 8 is a bug, 9 kills its worker whenever it is tried."""
    if x == 7:
        raise ValueError("seven is not wanted")
    if x == 8:
        raise KeyError("eight")
    if x == 9:
        os.kill(os.getpid(), signal.SIGKILL)
    return x


def dies_once(folder: str, x: int) -> int:
    """The first worker to try cell 3 is killed; the second is not."""
    mark = Path(folder, "tried")
    if x == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return x


def slow(seconds: float, x: Any) -> int:
    """Says who it is, then takes its time."""
    print(os.getpid(), flush=True)
    time.sleep(seconds)
    return os.getpid()


def no_plain_data(x: int) -> Any:
    return lambda: x


def spawned() -> list[psutil.Process]:
    """The worker processes of this one that are alive."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if "spawn_main" in " ".join(child.cmdline()):
                found.append(child)
        except psutil.Error:  # it has just ended
            continue
    return found

"""Memory of a run over time: this process and its workers, a line every few seconds."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

EVERY_S = 2.0
SETTLED_CELLS = 50  # what came before is start-up: imports, caches, the first traces


@dataclass(frozen=True)
class Piece:
    """One process's life over the results: medians of its first and last tenth, settled, in MB."""

    who: str
    cells: int
    seconds: float
    samples: int
    parent_mb: tuple[float, float]
    workers_mb: tuple[float, float]
    parent_max_mb: float
    workers_max_mb: float


class Memory:
    """Appends samples to a file while it is open; `cells` is the caller's count."""

    def __init__(self, path: Path, who: str) -> None:
        self.path, self.who, self.cells = path, who, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        me, start = psutil.Process(), time.monotonic()
        with self.path.open("a", encoding="utf-8") as file:
            while not self._over.wait(EVERY_S):
                sample = {
                    "pid": os.getpid(),
                    "who": self.who,
                    "s": round(time.monotonic() - start, 1),
                    "cells": self.cells,
                    "parent": me.memory_info().rss,
                    "workers": sum(_rss(child) for child in me.children(recursive=True)),
                }
                file.write(json.dumps(sample) + "\n")
                file.flush()

    @staticmethod
    def pieces(path: Path) -> list[Piece]:
        """The pieces that a file of samples holds, in the order in which they ran."""
        by_process: dict[Any, list[dict[str, Any]]] = {}
        if path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                sample = json.loads(line)
                by_process.setdefault((sample["pid"], sample["who"]), []).append(sample)
        return [_piece(samples) for samples in by_process.values()]


def _piece(samples: list[dict[str, Any]]) -> Piece:
    settled = [s for s in samples if s["cells"] >= SETTLED_CELLS] or samples
    tenth = max(1, len(settled) // 10)

    def ends(name: str) -> tuple[float, float]:
        first, last = settled[:tenth], settled[-tenth:]
        return tuple(round(median(s[name] for s in part) / 1e6, 1) for part in (first, last))

    return Piece(
        samples[-1]["who"],
        samples[-1]["cells"],
        samples[-1]["s"],
        len(samples),
        ends("parent"),
        ends("workers"),
        round(max(s["parent"] for s in samples) / 1e6, 1),
        round(max(s["workers"] for s in samples) / 1e6, 1),
    )


def _rss(process: psutil.Process) -> int:
    """Resident bytes; pages that processes share count in each."""
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0

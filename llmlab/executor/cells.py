"""A cell that is done, how one is called, and the choice of who runs them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

ATTEMPTS = 2  # a cell whose worker dies is tried once more, then reported

Function = Callable[[Any], Any]
Cells = Iterable[tuple[int, Any]]


@dataclass(frozen=True)
class Done:
    """One cell: its number, and its value or the reason why there is none.

    seconds: time in the function. worker: the process id, or a Dask worker's address.
    attempts: 2 if a first worker died.
    """

    cell: int
    value: Any = None
    error: str | None = None
    seconds: float = 0.0
    worker: str = ""
    attempts: int = 1

    @property
    def ok(self) -> bool:
        return self.error is None


class Runner(Protocol):
    """Runs a function over numbered cells and yields each when it is done, in any order.

    Cells are taken from the iterable only as there is room, so that it may be endless. Leaving
    the loop early (an exception, Ctrl-C, `close()`) ends all workers at once.
    """

    @property
    def what(self) -> str:
        """Who runs the cells, in words for the screen."""
        ...

    def run(self, function: Function, cells: Cells) -> Generator[Done]: ...


def call(function: Function, number: int, cell: Any) -> Done:
    """Call the function; an exception of its own becomes the cell's reason."""
    start = time.perf_counter()
    value, error = None, None
    try:
        value = function(cell)
    except Exception as raised:  # one cell must not stop the others
        error = reason(raised)
    return Done(number, value, error, time.perf_counter() - start, str(os.getpid()))


def reason(error: BaseException) -> str:
    """An exception in a sentence; a ValueError's text is one already."""
    text = str(error).strip()
    if isinstance(error, ValueError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@dataclass(frozen=True)
class Serial:
    """Everything in this process, one cell after the other."""

    what: str = "in this process"

    def run(self, function: Function, cells: Cells) -> Generator[Done]:
        for number, cell in cells:
            yield call(function, number, cell)


def cores() -> int:
    """Cores that this process may run on: a container can make them fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def make_runner(
    workers: int | None = None, *, dask: bool = False, scheduler: str | None = None
) -> Runner:
    """Processes here by default; a local Dask cluster, or the one at `scheduler`.

    workers: how many processes; None = as many as cores. 0 = in this process. Raises ValueError
    for what does not go together, and where Dask is not installed.
    """
    if workers is not None and not 0 <= workers <= 1024:
        raise ValueError(f"--workers {workers}: must be in 0..1024 (0: in this process)")
    if scheduler is not None:
        if workers is not None:
            raise ValueError("--scheduler: its cluster has workers of its own; leave --workers out")
        from llmlab.executor.cluster import Cluster

        return Cluster(scheduler=scheduler)
    if dask:
        if workers == 0:
            raise ValueError("--workers 0: --dask needs at least one worker")
        from llmlab.executor.cluster import Cluster

        return Cluster(workers=workers or cores())
    if workers == 0:
        return Serial()
    from llmlab.executor.processes import Processes

    return Processes(workers or cores())

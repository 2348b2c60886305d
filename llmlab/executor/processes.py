"""Processes on this machine: each asks for a cell, answers, asks for the next.

    parent  --(number, cell)-->  worker          one cell in flight a worker, no more
            <------ Done -------

The standard library's pool gives up as a whole when one process dies. Here a dead worker is
replaced, its cell tried once more and then reported. Python objects go through pipes between our
own processes only; nothing of that reaches the disk.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pickle import PicklingError
from typing import Any

from llmlab.executor.cells import ATTEMPTS, Cells, Done, Function, call

END_S = 2.0  # how long a worker that has nothing to do may take to leave


class Processes:
    """`workers` processes, started by spawn: each imports only what the function needs."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    @property
    def what(self) -> str:
        return "1 process here" if self.workers == 1 else f"{self.workers} processes here"

    def run(self, function: Function, cells: Cells) -> Generator[Done]:
        """See `Runner`. RuntimeError if a worker cannot even start."""
        source = iter(cells)
        again: deque[tuple[int, Any]] = deque()
        attempts: dict[int, int] = {}  # of cells whose worker died
        crew: list[_Worker] = []
        finished = False
        try:
            while True:
                for worker in crew:
                    if not worker.busy and (given := _next(again, source)) is not None:
                        worker.give(*given)
                # Workers are started one at a time: few cells never start many processes.
                while len(crew) < self.workers and (given := _next(again, source)) is not None:
                    crew.append(_Worker(function))
                    crew[-1].give(*given)
                busy = {worker.pipe: worker for worker in crew if worker.busy}
                if not busy:
                    finished = True
                    return
                for pipe in wait(list(busy)):
                    worker = busy[pipe]  # type: ignore[index]
                    number, cell = worker.held()
                    done = worker.take()
                    if done is None:  # dead
                        crew.remove(worker)
                        attempts[number] = attempts.get(number, 0) + 1
                        if attempts[number] < ATTEMPTS:
                            again.append((number, cell))
                        else:
                            error = f"the worker died twice on this cell ({worker.how()})"
                            yield Done(number, error=error, attempts=ATTEMPTS)
                    elif done is not READY:
                        yield replace(done, attempts=attempts.pop(number, 0) + 1)
        finally:
            for worker in crew:
                worker.end(kindly=finished)


def _next(again: deque[tuple[int, Any]], source: Iterator[tuple[int, Any]]) -> Any:
    return again.popleft() if again else next(source, None)


READY = Done(-1)  # a worker's first word: it has imported what it needs


class _Worker:
    """One process as its parent sees it."""

    def __init__(self, function: Function) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, function), daemon=True)
        with _sigint_blocked():
            self._process.start()
        theirs.close()
        self._ready = False
        self._held: tuple[int, Any] | None = None

    @property
    def busy(self) -> bool:
        return self._held is not None

    def held(self) -> tuple[int, Any]:
        """The cell it works on."""
        assert self._held is not None
        return self._held

    def give(self, number: int, cell: Any) -> None:
        """Hand it a cell; if it is dead, `take` will say so."""
        self._held = (number, cell)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send((number, cell))

    def take(self) -> Done | None:
        """What it sent: READY, a cell that is done, or None if it has died."""
        try:
            done = self.pipe.recv()
        except (EOFError, OSError):
            self.end(kindly=False)
            if not self._ready:
                raise RuntimeError(
                    f"a worker process could not start ({self.how()}); its own words are above"
                ) from None
            return None
        if done == READY:
            self._ready = True
            return READY
        self._held = None
        return done  # type: ignore[no-any-return]

    def how(self) -> str:
        """How it died: a signal's name, or its exit status."""
        code = self._process.exitcode
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return signal.Signals(-code).name
        return f"exit status {code}"

    def end(self, kindly: bool) -> None:
        """Let it leave, or end it at once."""
        self.pipe.close()
        if kindly:
            self._process.join(END_S)
        if self._process.is_alive():
            self._process.kill()
        self._process.join()


@contextlib.contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Start a child that never sees Ctrl-C (it inherits the mask), and lose none here."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(pipe: Connection, function: Function) -> None:
    """The worker's life: until its parent closes the pipe, or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; it ends us
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    try:
        pipe.send(READY)
        while True:
            number, cell = pipe.recv()
            done = call(function, number, cell)
            try:
                pipe.send(done)
            except (PicklingError, TypeError, AttributeError) as error:
                pipe.send(replace(done, value=None, error=f"its value is no plain data: {error}"))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _leave_with_parent() -> None:
    """A parent killed outright closes no pipe that we are reading: end in the middle of a cell."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

"""The same over Dask: a cluster of processes on this machine, or one that is running already.

Dask sends Python objects as pickles over its connections: the cluster must be one you trust. The
local one listens on loopback alone and spills nothing to disk. A worker that dies is replaced by
its nanny, and its cells are tried again elsewhere; how often is the scheduler's setting
(`allowed-failures`), which the local cluster gets from ATTEMPTS.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any

from llmlab.executor.cells import ATTEMPTS, Cells, Done, Function, call, reason
from llmlab.executor.code import whole_version

IN_FLIGHT = 2  # cells at the cluster for each of its threads: one runs, one waits beside it
LOOK_S = 5.0  # how often the cluster's size is asked for
CONNECT_S = 10.0
WORKERS_S = 60.0
INSTALL = (
    "pip install 'llmlab[cluster]' (in a checkout: pip install -c constraints.txt dask distributed)"
)

LOCAL = {
    "distributed.scheduler.allowed-failures": ATTEMPTS - 1,
    # A dead worker's cells are all counted against: let it hold no more than the one it runs.
    "distributed.scheduler.worker-saturation": 1.0,
    # Its logs keep what was asked, a cell's function with it: a thousand of those are megabytes.
    "distributed.admin.low-level-log-length": 50,
    "distributed.comm.timeouts.connect": f"{CONNECT_S:g}s",
    # Values are small and nothing is to reach the disk; a worker's memory is the system's to limit.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
}


class Cluster:
    """Cells on Dask workers: `workers` processes of one thread here, or those at `scheduler`."""

    def __init__(self, *, workers: int = 1, scheduler: str | None = None) -> None:
        try:
            import distributed  # noqa: F401
        except ImportError:
            raise ValueError(f"Dask is not installed: {INSTALL}") from None
        self.workers, self.scheduler = workers, scheduler

    @property
    def what(self) -> str:
        if self.scheduler is not None:
            return f"Dask at {self.scheduler}"
        return f"a local Dask cluster of {self.workers} worker{'s' * (self.workers > 1)}"

    def run(self, function: Function, cells: Cells) -> Generator[Done]:
        """See `Runner`. ValueError where the cluster cannot be reached or cannot run llmlab."""
        with self._client() as client:
            if self.scheduler is not None:
                _same_code(client)
            yield from _run(client, function, cells)

    @contextlib.contextmanager
    def _client(self) -> Iterator[Any]:
        import dask
        from distributed import Client, LocalCluster

        with contextlib.ExitStack() as stack:
            if self.scheduler is None:
                folder = stack.enter_context(TemporaryDirectory(prefix="llmlab-dask-"))
                stack.enter_context(dask.config.set({**LOCAL, "temporary-directory": folder}))
                cluster = LocalCluster(
                    n_workers=self.workers,
                    threads_per_worker=1,
                    host="127.0.0.1",
                    dashboard_address="127.0.0.1:0",
                    memory_limit=0,
                    local_directory=folder,
                    silence_logs="CRITICAL",
                )
                stack.callback(_end, cluster)
                address: Any = cluster
            else:
                address = self.scheduler
            try:
                client = Client(address, timeout=CONNECT_S, set_as_default=False)
            except (OSError, ValueError) as error:
                raise ValueError(
                    f"--scheduler {self.scheduler}: no Dask scheduler answers ({reason(error)}); "
                    "start one with `dask scheduler` and workers with `dask worker ADDRESS`"
                ) from None
            stack.callback(client.close, timeout=1)
            try:
                client.wait_for_workers(1, timeout=WORKERS_S)
            except TimeoutError:
                raise ValueError(
                    f"{self.what}: has no worker; start some with `dask worker ADDRESS`"
                ) from None
            yield client


def _same_code(client: Any) -> None:
    """Refuse workers that have another llmlab, or none: their figures would not be ours.

    A worker that joins later is not asked.
    """
    ours = whole_version()
    try:
        theirs = client.run(whole_version)
    except Exception as error:
        raise ValueError(f"a Dask worker has no llmlab to run ({reason(error)})") from None
    for worker, version in theirs.items():
        if version != ours:
            raise ValueError(
                f"the Dask worker {worker} has another llmlab ({version}; here {ours}); install "
                "the same on every worker"
            )


def _end(cluster: Any) -> None:
    """End the workers now, whatever they do: a cell that runs is not waited for."""
    for nanny in list(cluster.workers.values()):
        with contextlib.suppress(Exception):  # its insides may change: then it ends more slowly
            nanny.auto_restart = False
            nanny.process.process._process.kill()
    cluster.close(timeout=5)


def _run(client: Any, function: Function, cells: Cells) -> Generator[Done]:
    from distributed import as_completed

    source = iter(cells)
    numbers: dict[str, int] = {}  # key of a future -> its cell
    flight = as_completed(loop=client.loop)
    room, looked = 0, -LOOK_S
    prefix = f"llmlab-{time.time_ns():x}"
    while True:
        if time.monotonic() - looked >= LOOK_S:
            looked, room = time.monotonic(), IN_FLIGHT * max(1, sum(client.nthreads().values()))
        while len(numbers) < room and (given := next(source, None)) is not None:
            key = f"{prefix}-{given[0]}"
            numbers[key] = given[0]
            flight.add(client.submit(call, function, *given, key=key, pure=False))
        if not numbers:
            return
        future = next(flight)
        yield _taken(future, numbers.pop(future.key))


def _taken(future: Any, number: int) -> Done:
    """What became of a cell. An error that is not the cell's own ends the run."""
    from distributed import CancelledError, KilledWorker

    try:
        done: Done = future.result()
    except KilledWorker as error:
        times = error.allowed_failures + 1
        return Done(
            number,
            error=f"the worker died {'twice' if times == 2 else f'{times} times'} on this cell",
            attempts=times,
        )
    except (CancelledError, OSError) as error:
        raise RuntimeError(
            f"the Dask cluster went away ({reason(error)}); what is done is kept, run it again"
        ) from None
    except Exception as error:
        raise RuntimeError(
            f"a Dask worker could not run llmlab ({reason(error)}); every worker needs the same "
            "version of it"
        ) from None
    return replace(done, cell=number)

"""The same on a real local Dask cluster."""

from __future__ import annotations

import os
import signal
import sys
import tempfile

import psutil
import pytest

from llmlab.executor import Results, make_runner
from tests.executor import work

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals"),
]


def test_a_worker_killed_in_the_middle_costs_no_cell_and_doubles_none(tmp_path):
    """40 cells; after the tenth a worker is killed. All are there, each once, with its value."""
    path, count = tmp_path / "run.jsonl", 40
    killed = None
    with Results.open(path, kind="squares", code="1", grid={}, cells=count) as results:
        for done in make_runner(2, dask=True).run(work.square, enumerate(range(count))):
            results.write(done.cell, {"ok": done.ok, "value": done.value, "worker": done.worker})
            if results.count == 10:
                killed = done.worker
                os.kill(int(killed), signal.SIGKILL)
        lines = list(results.lines())
    assert sorted(line["cell"] for line in lines) == list(range(count))
    assert all(line["value"] == {"square": line["cell"] ** 2} for line in lines)
    after = {line["worker"] for line in lines[-5:]}
    assert killed not in after


def test_cells_that_fail_or_kill_are_reported_and_the_rest_is_kept():
    seen = {d.cell: d for d in make_runner(2, dask=True).run(work.picky, enumerate(range(30)))}
    assert len(seen) == 30
    failed = {cell: d.error for cell, d in seen.items() if not d.ok}
    died = "the worker died twice on this cell"
    assert {n: failed.pop(n) for n in (7, 8, 9)} == {
        7: "seven is not wanted",
        8: "KeyError: 'eight'",
        9: died,
    }
    # Dask may hand a cell to a worker that is just dying; twice in a row, that cell is blamed too.
    assert len(failed) <= 1
    assert set(failed.values()) <= {died}


def test_it_listens_on_loopback_alone_and_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    stream = make_runner(1, dask=True).run(work.square, enumerate(range(200)))
    next(stream)
    me = psutil.Process()
    workers = work.spawned()
    assert workers
    listening = {
        connection.laddr.ip
        for process in [me, *workers]
        for connection in process.net_connections(kind="inet")
        if connection.status == "LISTEN"
    }
    files = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    stream.close()
    assert not [name for name in files if "pickle" in name or name.endswith(".pkl")]
    assert listening == {"127.0.0.1"}
    assert list(tmp_path.iterdir()) == []
    assert psutil.wait_procs(workers, timeout=10)[1] == []


def test_a_running_cluster_is_used_and_one_that_is_not_there_is_an_error(tmp_path, monkeypatch):
    from distributed import LocalCluster

    from llmlab.executor import cluster as module

    quiet = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "silence_logs": 50}
    quiet["local_directory"] = str(tmp_path)
    with LocalCluster(n_workers=1, threads_per_worker=2, **quiet) as cluster:
        runner = make_runner(scheduler=cluster.scheduler_address)
        assert sorted(d.value["square"] for d in runner.run(work.square, enumerate(range(5)))) == [
            0,
            1,
            4,
            9,
            16,
        ]
    monkeypatch.setattr(module, "CONNECT_S", 1.0)
    with pytest.raises(ValueError, match="no Dask scheduler answers"):
        list(make_runner(scheduler="tcp://127.0.0.1:1").run(work.square, enumerate(range(2))))

"""Who runs the cells: every cell once, errors kept apart, dead workers replaced, no leftovers."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from functools import partial

import psutil
import pytest

from llmlab.executor import Serial, code_version, make_runner
from llmlab.executor.code import whole_version
from tests.executor import work

REASONS = {7: "seven is not wanted", 8: "KeyError: 'eight'"}


def numbered(count):
    return enumerate(range(count))


def test_cells_run_here_one_after_the_other():
    seen = list(Serial().run(work.square, numbered(3)))
    assert [(d.cell, d.value) for d in seen] == [(i, {"square": i * i}) for i in range(3)]


def test_a_cell_that_fails_stops_no_other():
    seen = {d.cell: d for d in Serial().run(work.picky, numbered(9))}
    assert len(seen) == 9
    assert {cell: d.error for cell, d in seen.items() if not d.ok} == REASONS


def test_a_worker_that_dies_is_replaced_and_its_cell_reported():
    seen = list(make_runner(2).run(work.picky, numbered(12)))
    assert sorted(d.cell for d in seen) == list(range(12))
    failed = {d.cell: d.error for d in seen if not d.ok}
    assert failed == {**REASONS, 9: "the worker died twice on this cell (SIGKILL)"}
    assert {d.cell: d.attempts for d in seen}[9] == 2


def test_a_cell_is_tried_again_after_its_worker_died(tmp_path):
    run = make_runner(2).run(partial(work.dies_once, str(tmp_path)), numbered(6))
    seen = {d.cell: d for d in run}
    assert {cell: d.value for cell, d in seen.items()} == {i: i for i in range(6)}
    assert seen[3].attempts == 2


def test_cells_are_taken_only_as_there_is_room_and_leaving_ends_the_workers():
    taken = []
    endless = ((taken.append(i) or i, i) for i in itertools.count())
    stream = make_runner(2).run(work.square, endless)
    next(stream)
    workers = work.spawned()
    assert workers
    assert len(taken) <= 4
    stream.close()
    assert psutil.wait_procs(workers, timeout=5)[1] == []


def test_a_value_that_is_no_plain_data_is_the_cell_s_error():
    (done,) = make_runner(1).run(work.no_plain_data, numbered(1))
    assert "no plain data" in done.error


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"workers": -1}, "--workers -1"),
        ({"workers": 2, "scheduler": "tcp://127.0.0.1:1"}, "leave --workers out"),
        ({"workers": 0, "dask": True}, "at least one"),
    ],
)
def test_what_does_not_go_together_is_refused(given, said):
    with pytest.raises(ValueError, match=said):
        make_runner(**given)


def test_the_code_s_version_follows_its_sources(tmp_path):
    data = tmp_path / "data.yaml"
    data.write_text("a: 1\n")
    first = code_version(("trace",), (data,))
    assert first == code_version(("trace",), (data,))
    assert first != code_version(("config",), (data,))
    code_version.cache_clear()
    data.write_text("a: 2\n")
    assert first != code_version(("trace",), (data,))
    assert whole_version() == whole_version()


# ------------------------------------------------------------------ a parent that ends early

PARENT = """
import sys
from functools import partial
from llmlab.executor import make_runner
from tests.executor import work
if __name__ == "__main__":
    runner = make_runner(2, dask=sys.argv[1] == "dask")
    for done in runner.run(partial(work.slow, 60.0), enumerate(range(4))):
        pass
"""


@pytest.fixture(params=["processes", "dask"])
def parent(request, tmp_path):
    """A run whose two cells would take a minute, and the processes that run them."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    command = [sys.executable, str(script), request.param]
    # In a session of its own, so that Ctrl-C can reach all of its processes, as a terminal does.
    running = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,
        stderr=subprocess.PIPE,
    )
    assert running.stdout is not None
    workers = [psutil.Process(int(running.stdout.readline())) for _ in range(2)]
    yield running, workers
    for process in [*workers, running]:
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            process.kill()
    running.wait()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_workers_end_in_the_middle_of_a_cell_when_their_parent_is_killed(parent):
    running, workers = parent
    running.kill()
    assert psutil.wait_procs(workers, timeout=20)[1] == []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c_ends_the_workers_in_the_middle_of_a_cell(parent):
    running, workers = parent
    begin = time.monotonic()
    os.killpg(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=20)
    assert psutil.wait_procs(workers, timeout=5)[1] == []
    assert time.monotonic() - begin < 20
    assert said.count("KeyboardInterrupt") <= 2  # the parent's, none of a worker

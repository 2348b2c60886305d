"""Background jobs: one at a time, stoppable, and the newest change is never lost."""

import threading
import time
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from llmlab.viz.live import LiveRun, Throttle
from tests.viz.idle import wait_idle


def test_a_second_start_is_refused_while_one_runs():
    live, release = LiveRun(), threading.Event()
    assert live.start(lambda stop: release.wait(5))
    assert not live.start(lambda stop: None)
    release.set()
    wait_idle(live)
    assert live.start(lambda stop: None)


def test_stop_is_seen_by_the_job_at_once():
    live, seen = LiveRun(), threading.Event()
    live.start(lambda stop: seen.set() if stop.wait(5) else None)
    assert live.cancel(wait=1.0)
    assert seen.is_set()


def test_a_queued_job_does_not_outlive_a_stop():
    live, ran = LiveRun(), []
    live.start(lambda stop: stop.wait(5))
    live.start(lambda stop: ran.append(1), queue=True)
    assert live.cancel(wait=1.0)
    wait_idle(live)
    assert ran == []


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.0005, 0.002]), min_size=1, max_size=12))
def test_the_newest_change_always_runs_and_jobs_never_overlap(pauses):
    live, done, inside, overlaps = LiveRun(), [], threading.Lock(), []

    def job(number):
        def run(stop):
            if not inside.acquire(blocking=False):
                overlaps.append(number)
                return
            time.sleep(0.0005)
            done.append(number)
            inside.release()

        return run

    for number, pause in enumerate(pauses):
        live.start(job(number), queue=True)
        time.sleep(pause)
    wait_idle(live)
    assert done[-1] == len(pauses) - 1
    assert overlaps == []


def test_a_failing_job_leaves_the_runner_usable(monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    live = LiveRun()
    live.start(lambda stop: 1 / 0)
    wait_idle(live)
    ran = threading.Event()
    assert live.start(lambda stop: ran.set())
    assert ran.wait(1)


def test_what_waits_behind_a_failing_job_still_runs(monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    live, release, ran = LiveRun(), threading.Event(), threading.Event()

    def fails(stop):
        release.wait(5)
        raise ValueError

    live.start(fails)
    live.start(lambda stop: ran.set(), queue=True)
    release.set()
    wait_idle(live)
    assert ran.is_set()


def test_a_start_after_a_stop_is_not_stopped_with_the_job_before_it():
    live, release, stopped = LiveRun(), threading.Event(), []
    live.start(lambda stop: release.wait(5))
    live.cancel()
    assert live.start(lambda stop: stopped.append(stop.is_set()), queue=True)
    release.set()
    wait_idle(live)
    assert stopped == [False]


def test_a_refused_start_leaves_what_waits():
    live, release, ran = LiveRun(), threading.Event(), []
    live.start(lambda stop: release.wait(5))
    live.start(lambda stop: ran.append("waits"), queue=True)
    assert not live.start(lambda stop: ran.append("refused"))
    release.set()
    wait_idle(live)
    assert ran == ["waits"]


def test_the_throttle_passes_the_first_and_then_its_rate(monkeypatch):
    stamps = iter([0.0, 0.001, 0.049, 0.05, 0.09, 0.2])
    clock = SimpleNamespace(monotonic=lambda: next(stamps))
    monkeypatch.setattr("llmlab.viz.live.time", clock)
    throttle = Throttle(per_second=20)
    assert [throttle.ready() for _ in range(6)] == [True, False, False, True, False, True]

"""Random workloads under every policy; LLMLAB_WORKLOADS sets how many (default 200)."""

import os

import pytest

from tests.sched.workloads import run_workload

COUNT = int(os.environ.get("LLMLAB_WORKLOADS", "200"))


@pytest.mark.parametrize("first", range(0, COUNT, 100))
def test_every_law_holds_in_random_workloads(first: int) -> None:
    for seed in range(first, min(first + 100, COUNT)):
        try:
            run_workload(seed)
        except Exception as error:
            raise AssertionError(f"run_workload({seed}) breaks a law: {error}") from error


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1_000_000, 1_002_000, 250))
def test_every_law_holds_in_2000_more_workloads(first: int) -> None:
    for seed in range(first, first + 250):
        try:
            run_workload(seed)
        except Exception as error:
            raise AssertionError(f"run_workload({seed}) breaks a law: {error}") from error


def test_the_workloads_reach_the_rare_paths() -> None:
    """Else the laws would hold because nothing happened."""
    benches = [run_workload(seed) for seed in range(200)]
    steps = [step for bench in benches for step in bench.steps]
    assert sum(bool(step.preempted) for step in steps) > 50
    assert sum(step.hits > 0 for step in steps) > 50
    reasons = [request.finish_reason for bench in benches for request in bench.requests]
    assert all(reasons.count(reason) > 20 for reason in ("stop", "length", "abort"))

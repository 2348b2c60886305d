"""A small trace with every kind of step, its times written by hand (ms)."""

from __future__ import annotations

import pytest

from llmlab.trace import RequestRecord, StepRecord, TokenEvent, Trace

MS = 1_000_000


def step(index: int, start: float, end: float, *scheduled: tuple[str, int, int, bool]):
    return StepRecord(index, int(start * MS), int(end * MS), list(scheduled), blocks_used=index + 1)


@pytest.fixture
def trace() -> Trace:
    """`a`: queue 10 ms, two prefill chunks, four decodes; `b` joins in between, class "doc"."""
    made = Trace(meta={"source": "hand", "simulated": False})
    made.requests["a"] = RequestRecord(
        "a",
        prompt_tokens=20,
        t_send=0,
        t_queued=2 * MS,
        t_first_scheduled=12 * MS,
        events=[TokenEvent(t * MS) for t in (52, 62, 72, 112, 122)],
        completion_tokens=5,
        outcome="completed",
        finish_reason="length",
        t_end=123 * MS,
    )
    made.requests["b"] = RequestRecord(
        "b",
        class_name="doc",
        prompt_tokens=30,
        t_send=60 * MS,
        t_queued=61 * MS,
        t_first_scheduled=72 * MS,
        events=[TokenEvent(112 * MS), TokenEvent(122 * MS)],
        completion_tokens=2,
        outcome="completed",
        finish_reason="length",
        t_end=122 * MS,
    )
    made.steps = [
        step(0, 12, 32, ("a", 16, 0, False)),
        step(1, 32, 52, ("a", 4, 16, False)),
        step(2, 52, 62, ("a", 1, 20, True)),
        step(3, 62, 72, ("a", 1, 21, True)),
        step(4, 72, 112, ("a", 1, 22, True), ("b", 30, 0, False)),
        step(5, 112, 122, ("a", 1, 23, True), ("b", 1, 30, True)),
    ]
    return made

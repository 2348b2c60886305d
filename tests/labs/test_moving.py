"""What lab 08 shows of a real pair: rows that follow from the stamps; half a device is half."""

from __future__ import annotations

import pytest

from llmlab.engine.pair.result import LayerSent, MovedRequest, PairResult
from llmlab.labs.moving import (
    decode_step_ms,
    moved_table,
    prefill_windows,
    share_of,
    warranted,
)
from llmlab.perf.hardware import load_hardware
from llmlab.trace import StepRecord, Trace
from llmlab.viz.figures.kv_transfer import kv_transfer, transfer_rows

MS = 1_000_000


def moved(**changes) -> MovedRequest:
    """Two layers of 500 bytes a token; prefill from 10 to 50 ms, the last layer there at 52."""
    fields = {
        "request_id": "a",
        "prompt_tokens": 100,
        "cached_tokens": 0,
        "where": "remote",
        "moved_tokens": 100,
        "bytes": 100_000,
        "outcome": "completed",
        "reason": None,
        "t_queued": 5 * MS,
        "t_asked": 8 * MS,
        "t_prefill_start": 10 * MS,
        "t_prefill_end": 50 * MS,
        "t_first_transfer": 30 * MS,
        "t_last_transfer": 52 * MS,
        "t_first_decode": 53 * MS,
        "t_end": 90 * MS,
        "layers": [
            LayerSent(0, 30 * MS, 33 * MS, 50_000, 100),
            LayerSent(1, 49 * MS, 52 * MS, 50_000, 100),
        ],
    }
    return MovedRequest(**{**fields, **changes})


def local() -> MovedRequest:
    stamps = ("t_asked", "t_prefill_start", "t_prefill_end", "t_first_transfer", "t_last_transfer")
    nothing = {"moved_tokens": 0, "bytes": 0, "layers": [], **dict.fromkeys(stamps)}
    return moved(request_id="b", where="local", prompt_tokens=7, **nothing)


def pair(*requests: MovedRequest) -> PairResult:
    return PairResult(
        **dict.fromkeys(("model", "dtype"), "tiny"),
        kv_bytes_per_token=1000,
        requests=list(requests),
        **{name: [] for name in ("tokens", "texts")},
        tokens_equal=True,
        **dict.fromkeys(("tokens_compared", "tokens_within_margin"), 0),
        **dict.fromkeys(("bytes_moved", "bytes_received", "bytes_formula"), 100_000),
        transfer_ms=6.0,
        visible_ms=2.0,
        **{name: {} for name in ("queues", "workers", "leaked_blocks")},
        prefill_trace=Trace(),
        decode_trace=Trace(),
        colocated_trace=None,
    )


def test_the_table_sets_each_request_beside_the_learners_formula():
    text = repr(moved_table(pair(moved(), local()), lambda tokens: 999 * tokens))
    rows = text.splitlines()[2:]
    assert rows[0].split() == ["100", "elsewhere", "100", "100,000", "99,900", "100", "6.0", "2.0"]
    assert rows[1].split() == ["7", "here", "0", "0", "0", "0", "–", "–"]


def test_the_figure_draws_every_message_and_where_the_prefill_ended():
    figure = kv_transfer(moved())
    (bars,) = figure.data
    assert list(bars.y) == [0, 1]
    assert list(bars.base) == [20, 39]
    assert list(bars.x) == [3, 3]
    assert figure.layout.shapes[0].x1 == 40
    assert [row[1] for row in transfer_rows(moved())] == [
        "-2.0",
        "0.0",
        "20.0",
        "40.0",
        "42.0",
        "43.0",
    ]
    with pytest.raises(ValueError, match="moved nothing"):
        kv_transfer(local())


def test_decode_steps_are_told_apart_by_what_the_other_worker_did():
    def step(start: int, end: int, *names: str) -> StepRecord:
        return StepRecord(0, start * MS, end * MS, [(n, 1, 9, True) for n in names])

    trace = Trace(steps=[step(0, 5, "b"), step(6, 14, "b"), step(20, 29, "b"), step(60, 64, "b")])
    trace.steps.append(step(70, 99, "a", "b"))  # not alone: another step than the others
    windows = prefill_windows(pair(moved(), local()))
    assert windows == [(10 * MS, 50 * MS)]
    assert decode_step_ms(trace, "b", windows) == ([8, 9], [5, 4])


def test_half_a_device_has_half_of_everything_that_counts():
    whole = load_hardware("a100-80gb")
    half = share_of(whole, 0.5)
    assert (half.bandwidth, half.memory) == (whole.bandwidth / 2, whole.memory / 2)
    assert half.ridge("bf16") == whole.ridge("bf16")
    with pytest.raises(ValueError, match="share = 0"):
        share_of(whole, 0)


def test_separate_only_what_misses_and_only_for_what_reaches():
    assert warranted(0.89, 0.9, 0.9)
    assert not warranted(0.9, 1.0, 0.9)
    assert not warranted(0.5, 0.89, 0.9)

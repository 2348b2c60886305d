"""A learner's own run is judged by its own stamps."""

import pytest

from llmlab.measure.own_run import QUESTIONS, check_own
from llmlab.measure.per_request import request_metrics
from llmlab.trace import RequestRecord, TokenEvent

MS = 1_000_000


@pytest.fixture
def record():
    stamps = [400, 420, 440, 500, 520]
    return RequestRecord(
        "mine",
        t_send=0,
        t_queued=10 * MS,
        t_first_scheduled=150 * MS,
        events=[TokenEvent(t * MS) for t in stamps],
        completion_tokens=5,
        outcome="completed",
        t_end=521 * MS,
    )


def test_the_metrics_of_the_run_are_the_right_answers(record):
    m = request_metrics(record)
    right = {"ttft": m.ttft, "tpot": m.tpot, "e2e": m.e2e, "rate": m.stream_rate}
    assert set(right) == set(QUESTIONS)
    for name, value in right.items():
        assert check_own(record, name, value).state == "correct"


@pytest.mark.parametrize(
    ("name", "wrong", "mistake"),
    [
        ("ttft", 250, "prefill-alone"),
        ("ttft", "520 ms", "to-the-end"),
        ("tpot", 24, "n-gaps"),
        ("tpot", 104, "ttft-inside"),
        ("e2e", 120, "without-ttft"),
        ("rate", 4 / 120, "per-ms"),
    ],
)
def test_a_known_mistake_is_named(record, name, wrong, mistake):
    result = check_own(record, name, wrong)
    assert (result.state, result.misconception) == ("incorrect", mistake)


def test_seconds_are_understood_when_they_are_written(record):
    assert check_own(record, "ttft", "0.4 s").state == "correct"
    assert check_own(record, "ttft", ...).state == "not answered yet"


def test_a_run_without_gaps_has_no_such_question(record):
    record.events = record.events[:1]
    with pytest.raises(ValueError, match="at least two output tokens"):
        check_own(record, "tpot", 1)
    with pytest.raises(ValueError, match="must be one of"):
        check_own(record, "goodput", 1)

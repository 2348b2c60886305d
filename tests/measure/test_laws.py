"""Identities that hold for every trace: what a figure is made of, and what it may not depend on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmlab.measure.limits import Limits
from llmlab.measure.metrics import Contradiction, Counts, request_metrics, summarize
from llmlab.measure.rates import (
    Rates,
    Window,
    concurrency,
    default_window,
    peak_rate,
    resident_kv_tokens,
    tokens_in,
    tokens_per_second_bins,
)
from llmlab.measure.stats import describe, percentile
from llmlab.trace import RequestRecord, StepRecord, TokenEvent, Trace
from tests.measure.traces import MS, record, trace

FEW = settings(max_examples=40, deadline=None)  # each example is a whole run
OUTCOMES = ["completed", "failed", "cancelled", "rejected", "cancelled_before_send", "in_flight"]
UNSENT = ("rejected", "cancelled_before_send")


@st.composite
def records(draw, name="r", unknown=False):
    """A request whose stamps are in order, on a clock of nanoseconds."""
    at = draw(st.integers(0, 4_000_000_000))
    outcome = draw(st.sampled_from(OUTCOMES))
    stamps = []
    for _ in range(4):
        stamps.append(at)
        at += draw(st.integers(0, 500_000_000))
    events = []
    for _ in range(draw(st.integers(0, 12)) if outcome not in UNSENT else 0):
        k = draw(st.sampled_from([1, 1, 1, 2, 5, None] if unknown else [1, 1, 1, 2, 5]))
        events.append(TokenEvent(at, k))
        at += draw(st.sampled_from([0, 1, 7_000_000, 20_000_000, 900_000_000]))
    return RequestRecord(
        name,
        draw(st.sampled_from(["chat", "document"])),
        prompt_tokens=draw(st.integers(1, 5000)),
        t_sched=stamps[0],
        t_send=None if outcome == "cancelled_before_send" else stamps[1],
        t_queued=None if outcome in UNSENT else stamps[2],
        t_first_scheduled=None if outcome in UNSENT else stamps[3],
        events=events,
        completion_tokens=0 if not events else None,
        outcome=outcome,
        t_end=None if outcome == "in_flight" else at,
    )


@st.composite
def traces(draw, **kind):
    return trace(*(draw(records(name=f"r{i}", **kind)) for i in range(draw(st.integers(0, 8)))))


def moved(run: Trace, by: int, times: int = 1) -> Trace:
    """The same run with every stamp t made times * t + by."""

    def move(t):
        return None if t is None else times * t + by

    changed = [
        replace(
            r,
            t_sched=move(r.t_sched),
            t_send=move(r.t_send),
            t_queued=move(r.t_queued),
            t_first_scheduled=move(r.t_first_scheduled),
            events=[replace(event, t=move(event.t)) for event in r.events],
            t_end=move(r.t_end),
        )
        for r in run.requests.values()
    ]
    return trace(*changed)


@given(records())
def test_the_gaps_add_up_to_the_time_from_first_to_last_token(r):
    m = request_metrics(r)
    if not r.events:
        assert (m.ttft, m.tpot, m.e2e, m.itl, m.event_gaps) == (None, None, None, [], [])
        return
    span = (r.events[-1].t - r.events[0].t) / MS
    assert sum(m.itl) == pytest.approx(span)
    assert sum(m.event_gaps) == pytest.approx(span)
    assert m.e2e == pytest.approx(m.ttft + span)
    assert m.n == sum(event.k for event in r.events)
    if m.itl:
        assert m.tpot == pytest.approx(np.mean(m.itl))
    else:
        assert m.tpot is None


@given(records())
def test_one_token_first_makes_tpot_the_familiar_formula(r):
    m = request_metrics(r)
    first_alone = len(r.events) > 1 and r.events[0].k == 1 and r.events[1].t > r.events[0].t
    if first_alone and m.n > 1:
        assert m.tpot == pytest.approx((m.e2e - m.ttft) / (m.n - 1))


@given(records())
def test_queue_prefill_and_decode_are_the_engines_whole_time(r):
    m = request_metrics(r)
    if r.events:
        engine = (r.events[-1].t - r.t_queued) / MS
        assert m.queue + m.prefill + (m.e2e - m.ttft) == pytest.approx(engine)
        assert m.preprocessing + m.queue + m.prefill == pytest.approx(m.ttft)
        assert m.ttft_from_schedule == pytest.approx(m.dispatch_delay + m.ttft)


@FEW
@given(traces(unknown=True))
def test_the_books_balance_for_every_trace(run):
    summary = summarize(run)
    total = summary.all.counts
    assert total.submitted == len(run.requests)
    for name in Counts.__dataclass_fields__:
        parts = sum(getattr(group.counts, name) for group in summary.classes.values())
        assert getattr(total, name) == parts


@FEW
@given(traces())
def test_tokens_and_rates_of_the_classes_add_up(run):
    summary = summarize(run)
    whole = summary.all.rates
    if summary.window is None:
        assert whole == Rates()
        return
    parts = [group.rates.output_tokens for group in summary.classes.values()]
    assert (
        whole.output_tokens
        == sum(parts)
        == sum(e.k for r in run.requests.values() for e in r.events)
    )
    assert whole.completed_output_tokens <= whole.output_tokens
    if whole.output_tok_s is not None:
        assert whole.output_tok_s * whole.window_s == pytest.approx(whole.output_tokens)
        assert whole.peak_output_tok_s >= whole.output_tok_s * (1 - 1e-9)
    assert summary.all.concurrency_peak >= (summary.all.concurrency_mean or 0)


@FEW
@given(traces(), st.integers(-(10**12), 10**12))
def test_a_shift_of_the_clock_changes_nothing(run, by):
    one, other = summarize(run).to_dict(), summarize(moved(run, by)).to_dict()
    assert one["all"] == other["all"]
    assert one["classes"] == other["classes"]


@FEW
@given(traces(), st.integers(2, 5))
def test_a_slower_clock_scales_times_and_nothing_else(run, times):
    one, other = summarize(run).all, summarize(moved(run, 0, times)).all
    assert one.counts == other.counts
    for name in ("ttft", "tpot", "itl", "e2e", "queue"):
        assert one[name].n == other[name].n
        if one[name].n:
            assert other[name].mean == pytest.approx(times * one[name].mean)
            assert other[name].p95 == pytest.approx(times * one[name].p95)
    if one.rates.output_tok_s is not None:
        assert other.rates.output_tok_s == pytest.approx(one.rates.output_tok_s / times)
        assert one.concurrency_mean == pytest.approx(other.concurrency_mean)
        assert one.concurrency_peak == other.concurrency_peak


@FEW
@given(traces(), st.lists(st.integers(0, 20_000_000_000), min_size=3, max_size=3, unique=True))
def test_windows_are_half_open_so_neighbours_share_nothing(run, cuts):
    a, b, c = sorted(cuts)
    if any(r.t_send is None and r.t_sched is None for r in run.requests.values()):
        return
    left, right, both = (summarize(run, window=window).all for window in ((a, b), (b, c), (a, c)))
    assert left.counts.submitted + right.counts.submitted == both.counts.submitted
    assert left["ttft"].n + right["ttft"].n == both["ttft"].n
    tokens = [side.rates.output_tokens for side in (left, right, both)]
    assert tokens[0] + tokens[1] == tokens[2]
    assert max(left.concurrency_peak, right.concurrency_peak) == both.concurrency_peak


def test_a_class_may_be_called_all():
    """It is still one class: its figures are its own, whatever the sum of all classes is named."""
    run = trace(
        record("a", [100, 200], end=200, class_name="all"),
        record("b", [100, 200, 300], end=300, class_name="chat"),
    )
    summary = summarize(run)
    tokens = {name: group.rates.output_tokens for name, group in summary.classes.items()}
    assert tokens == {"all": 2, "chat": 3}
    assert summary.all.rates.output_tokens == 5


def test_a_token_at_the_end_of_a_window_is_outside_and_at_its_start_inside():
    r = record(events=[10, 20], end=20)
    assert tokens_in(r, Window(10 * MS, 20 * MS)) == 1
    assert tokens_in(r, Window(20 * MS, 30 * MS)) == 1
    assert tokens_in(r, default_window([r])) == 2


@FEW
@given(traces())
def test_mean_concurrency_is_arrival_rate_times_time_in_system(run):
    sent = [r for r in run.requests.values() if r.t_send is not None and r.outcome != "rejected"]
    ended = [r for r in sent if r.t_end is not None]
    if not sent or len(ended) < len(sent):
        return
    window = Window(min(r.t_send for r in sent), max(r.t_end for r in sent))
    _, mean = concurrency(run.requests.values(), window)
    if mean is not None:
        in_system = sum(r.t_end - r.t_send for r in sent)
        assert mean == pytest.approx(in_system / (window.end - window.start))


@FEW
@given(traces())
def test_the_bins_hold_every_token_of_the_window(run):
    window = default_window(run.requests.values())
    if window is not None:
        bins = tokens_per_second_bins(run.requests.values(), window)
        assert sum(bins) == sum(e.k for r in run.requests.values() for e in r.events)


@settings(deadline=None)  # a busy machine is no failure
@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=300),
    st.floats(0, 100),
)
def test_percentiles_are_numpys(samples, p):
    assert percentile(samples, p) == np.percentile(samples, p, method="linear")
    stat = describe(samples, [p])
    assert (stat.mean, stat.std) == (np.mean(samples), np.std(samples))
    assert list(stat.percentiles.values()) == [np.percentile(samples, p)]


@given(st.lists(st.none() | st.floats(0, 1e3), max_size=40))
def test_undefined_samples_are_counted_and_enter_nothing(samples):
    defined = [x for x in samples if x is not None]
    stat = describe(samples, [50])
    assert (stat.n, stat.undefined) == (len(defined), len(samples) - len(defined))
    assert stat.mean == (None if not defined else np.mean(defined))


def test_the_bootstrap_interval_covers_the_truth_as_often_as_it_says():
    from llmlab.measure.stats import Resampling

    rng = np.random.default_rng(3)
    hits = 0
    for seed in range(120):
        stat = describe(list(rng.normal(10, 2, 60)), [50], Resampling(200, seed))
        low, high = stat.ci["mean"]
        hits += low <= 10 <= high
    assert 105 <= hits <= 120  # 95 % of 120 is 114


def test_the_bootstrap_redraws_requests_not_gaps():
    from llmlab.measure.stats import Resampling

    # Two requests, each of 500 equal gaps: as gaps 1000 samples, as requests two.
    stat = describe([[10.0] * 500, [30.0] * 500], [50], Resampling(200, 0))
    assert stat.ci["mean"] == (10.0, 30.0)
    again = describe([[10.0] * 500, [30.0] * 500], [50], Resampling(200, 0))
    assert again.ci == stat.ci


def test_unknown_token_counts_leave_per_token_figures_out():
    m = request_metrics(record(events=[(100, None), (200, None), (300, None)], completion_tokens=9))
    assert m.itl is None
    assert m.event_gaps == [100, 100]
    assert (m.tpot, m.assumed_one_token_first) == (25, True)
    unknown = request_metrics(record(events=[(100, None), (200, None)]))
    assert (unknown.n, unknown.tpot, unknown.ttft) == (None, None, 100)
    first_known = request_metrics(record(events=[(100, 4), (200, None)], completion_tokens=9))
    assert (first_known.tpot, first_known.assumed_one_token_first) == (20, False)


def test_the_first_answer_token_stands_beside_the_first_token():
    m = request_metrics(record(events=[(50, 1, "reasoning"), (90, 1, "content"), (120, 1)]))
    assert (m.ttft, m.ttfat) == (50, 90)
    thinking = request_metrics(record(events=[(50, 1, "reasoning")]))
    assert (thinking.ttft, thinking.ttfat) == (50, None)


def test_equal_stamps_are_one_arrival():
    m = request_metrics(record(events=[(100, 1), (100, 2), (130, 3)]))
    assert m.event_gaps == [30]
    assert m.itl == [10, 10, 10]
    assert m.tpot == 10


def test_preempted_wait_is_apart_from_queue():
    r = record(events=[100, 300], queued=10, first_scheduled=30, end=300)
    r.preemptions = [(120 * MS, 200 * MS), (250 * MS, None)]
    m = request_metrics(r)
    assert (m.queue, m.preempted_wait) == (20, 130)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (record(events=[100], send=200), r"token event 0 = 100000000 ns is earlier than t_send"),
        (record(events=[300, 200]), r"token event 1 = .* is earlier than token event 0"),
        (record(events=[300], end=200), r"t_end = .* is earlier than token event 0"),
        (record(send=5, sched=9), r"t_send = .* is earlier than t_sched"),
        (record(queued=9, first_scheduled=5), r"t_first_scheduled = .* earlier than t_queued"),
        (record(events=[(1, 3)], completion_tokens=2), r"3 tokens were streamed but .* says 2"),
        (record(events=[(1, 0)]), r"carries k = 0 tokens"),
    ],
)
def test_a_record_that_cannot_be_true_is_refused(bad, message):
    with pytest.raises(Contradiction, match=message):
        summarize(trace(bad))


def test_books_that_do_not_balance_are_refused():
    with pytest.raises(Contradiction, match=r"submitted 3 is not admitted 1 \+ rejected 1"):
        Counts(3, 1, 0, 1, 1, 0, 0, 0)
    with pytest.raises(Contradiction, match=r"admitted 2 is not completed 1 \+ failed 0"):
        Counts(2, 0, 0, 2, 1, 0, 0, 0)
    lost = trace(record("a", [1], end=1), submitted=2)
    with pytest.raises(Contradiction, match=r"submitted 2 is not admitted 1"):
        summarize(lost)
    odd = record("a", [1], end=1, outcome="vanished")
    with pytest.raises(Contradiction, match=r"outcome 'vanished' has no place"):
        summarize(trace(odd))


def test_a_peak_below_its_average_is_refused():
    with pytest.raises(Contradiction, match=r"peak 3 is below the average 10.9"):
        Rates(output_tok_s=10.9, peak_output_tok_s=3)


def test_a_sliver_of_a_last_second_is_no_peak():
    window = Window(0, 2 * 10**9 + 1_000)
    assert peak_rate([10, 10, 1], window) == pytest.approx(11, rel=1e-5)
    half = Window(0, 2 * 10**9 + 500_000_000)
    assert peak_rate([10, 10, 8], half) == 16


def test_requests_that_only_touch_do_not_overlap():
    one, two = record("a", [5], end=10), record("b", [15], send=10, end=20)
    assert concurrency([one, two], Window(0, 20 * MS)) == (1, 1.0)


def test_limits_judge_from_the_schedule_so_a_late_sender_hides_nothing():
    late = record(events=[500], sched=0, send=400, end=500)
    assert Limits(ttft_ms=200).misses(request_metrics(late)) == ["ttft_ms"]


def test_limits_at_equality_pass_and_do_not_apply_without_a_second_token():
    exact = request_metrics(record(events=[100, 150, 200], end=200))
    assert Limits(ttft_ms=100, tpot_ms=50, gap_ms=50, e2el_ms=200).misses(exact) == []
    assert Limits(ttft_ms=99, tpot_ms=49, gap_ms=49, e2el_ms=199).misses(exact) == [
        "ttft_ms",
        "e2el_ms",
        "tpot_ms",
        "gap_ms",
    ]
    one = request_metrics(record(events=[100], end=100))
    assert Limits(tpot_ms=1, gap_ms=1).misses(one) == []
    empty = request_metrics(record(completion_tokens=0, end=100))
    assert Limits(ttft_ms=100).misses(empty) == ["ttft_ms"]


def test_a_class_without_limits_has_no_attainment():
    run = trace(
        record("a", [10], end=10, class_name="chat"),
        record("b", [10], end=10, class_name="batch"),
    )
    summary = summarize(run, limits={"chat": Limits(ttft_ms=5)})
    assert summary["batch"].attainment is None
    assert summary["batch"].judged is None
    assert (summary.all.good, summary.all.judged, summary.all.attainment) == (0, 1, 0.0)
    assert summarize(run).all.attainment is None
    assert summarize(run, limits=Limits()).all.rates.goodput_req_s is None


def test_a_client_that_waited_too_long_is_judged_and_a_scripted_cancel_is_not():
    run = trace(
        record("a", [10], end=10),
        record("b", end=900, outcome="cancelled", reason="timeout"),
        record("c", end=5, outcome="cancelled", reason="scripted"),
    )
    group = summarize(run, limits=Limits(ttft_ms=100)).all
    assert (group.good, group.judged, group.attainment) == (1, 2, 0.5)


def step(index, *scheduled, preempted=()):
    """Ten long, one after the other; scheduled: (request, tokens, tokens before)."""
    rows = [(name, n, before, before > 0) for name, n, before in scheduled]
    return StepRecord(index, 10 * index, 10 * index + 10, rows, preempted=list(preempted))


def test_the_most_resident_kv_is_read_from_the_plans():
    run = trace(
        RequestRecord("a", t_send=0, outcome="completed", t_end=30),
        RequestRecord("b", t_send=0, outcome="completed", t_end=60),
        RequestRecord("c", t_send=0, outcome="cancelled", t_end=40),
    )
    run.steps = [
        step(0, ("a", 100, 0)),
        step(1, ("a", 1, 100), ("b", 50, 0)),
        step(2, ("a", 1, 101), ("c", 30, 0), preempted=["b"]),
        step(3, ("b", 50, 0)),  # a is over, c still holds its 30
        step(4, ("b", 1, 50)),  # c left before this step
    ]
    assert resident_kv_tokens(run) == [100, 151, 132, 80, 51]
    assert summarize(run).max_resident_kv_tokens == 151
    assert summarize(trace()).max_resident_kv_tokens is None


def test_a_step_planned_before_a_cancel_holds_its_tokens_until_it_is_over():
    run = trace(
        RequestRecord("a", t_send=0, outcome="cancelled", t_end=9),
        RequestRecord("b", t_send=0, outcome="completed", t_end=30),
    )
    run.steps = [step(0, ("b", 5, 0)), step(1, ("a", 30, 0), ("b", 1, 5)), step(2, ("b", 1, 6))]
    assert resident_kv_tokens(run) == [5, 36, 7]


def test_an_empty_trace_has_no_figures_and_no_zeros_for_them():
    summary = summarize(Trace())
    assert summary.window is None
    assert summary.all.counts.submitted == 0
    assert summary.all["ttft"].mean is None
    assert summary.all.rates == Rates()


def test_a_window_of_no_length_has_no_rates():
    group = summarize(trace(record(events=[0], end=0))).all
    assert group.rates.output_tokens == 1
    assert group.rates.output_tok_s is None
    assert group.concurrency_mean is None


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"window": (5, 4)}, r"window = \(5, 4\): the end is before the start"),
        ({"percentiles": (101,)}, r"percentile = 101: must be in 0..100"),
        ({"limits": {"default": 5}}, r"limits\['default'\] = 5: must be a Limits"),
    ],
)
def test_a_bad_argument_is_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        summarize(trace(record(events=[1], end=1)), **kwargs)

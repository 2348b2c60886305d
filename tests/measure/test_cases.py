"""Figures that real tools got wrong, each from a public report, with the right values by hand."""

from __future__ import annotations

import pytest

from llmlab.measure.limits import Limits
from llmlab.measure.metrics import request_metrics, summarize
from llmlab.measure.rates import Window, tokens_per_second_bins
from llmlab.measure.stats import percentile
from tests.measure.traces import ns, record, trace


def test_an_opening_frame_that_only_announces_the_role_is_not_a_token():
    # vllm#3759. Role (5), finish (275), usage (276) are no token events, so not in the record.
    m = request_metrics(record(events=[214, 234, 254, 274], completion_tokens=4, end=277))
    assert (m.ttft, m.event_gaps, m.itl) == (214, [20, 20, 20], [20, 20, 20])
    assert (m.tpot, m.e2e, m.n, m.close_lag) == (20, 274, 4, 3)


def test_event_gaps_are_not_token_gaps():
    # vllm#27485, sglang#12064
    r = record(events=[(100, 1), (140, 4), (160, 2), (220, 1)], completion_tokens=8, end=221)
    m = request_metrics(r)
    assert (m.ttft, m.n) == (100, 8)
    assert m.event_gaps == [40, 20, 60]
    assert m.itl == [10, 10, 10, 10, 10, 10, 60]
    assert m.tpot == pytest.approx(17.142857142857142)
    group = summarize(trace(r)).all
    assert group["itl"].n == 7
    assert group["itl"].mean == pytest.approx(17.142857142857142)
    assert group["itl"].p99 == pytest.approx(57.0)
    assert group["event_gaps"].mean == 40


def test_the_busiest_second_counts_tokens_not_frames():
    # vllm#50677, vllm#35471, sglang#33193
    a = record("a", [(t, 4) for t in (250, 750, 1250, 1750, 2250, 2750)], end=2750)
    b = record("b", [(1500, 6)], end=1500)
    rates = summarize(trace(a, b)).all.rates
    assert tokens_per_second_bins([a, b], Window(0, ns(2750), closed=True)) == [8, 14, 8]
    assert rates.output_tokens == 30
    assert rates.peak_output_tok_s == 14
    assert rates.output_tok_s == pytest.approx(10.909090909090908)


def test_a_one_token_answer_has_no_tpot():
    # flexible-inference-bench#68, LMCache#2970
    run = trace(
        record("a", [150], completion_tokens=1, end=150),
        record("b", [250], completion_tokens=1, end=250),
        record("c", [100, 125, 150, 175, 200], completion_tokens=5, end=200),
    )
    limits = Limits(ttft_ms=200, tpot_ms=30)
    summary = summarize(run, limits=limits, window=(0, ns(2000)))
    assert [m.tpot for m in summary.requests] == [None, None, 25]
    assert (summary.all["tpot"].mean, summary.all["tpot"].n) == (25, 1)
    assert summary.all["tpot"].undefined == 2
    assert summary.all["ttft"].mean == pytest.approx(166.66666666666666)
    assert [m.request_id for m in summary.requests if not limits.misses(m)] == ["a", "c"]
    assert summary.all.good == 2
    assert summary.all.rates.goodput_req_s == 1.0


def test_empty_answers_do_not_drag_the_ttft_median_down():
    # vllm#6064
    run = trace(
        record("a", [300, 310, 320], completion_tokens=3, end=320),
        record("b", completion_tokens=0, end=62),
        record("c", [500, 510, 520], completion_tokens=3, end=520),
        record("d", completion_tokens=0, end=57),
        record("e", [400, 410, 420], completion_tokens=3, end=420),
    )
    group = summarize(run).all
    ttft = group["ttft"]
    assert (ttft.p50, ttft.n, ttft.undefined, ttft.min) == (400, 3, 2, 300)
    assert (group.counts.completed, group.counts.completed_empty) == (5, 2)
    assert group.rates.output_tokens == 9
    assert group["e2e"].n == 3


def test_waiting_inside_the_load_generator_is_still_waiting():
    # vllm#54101, guidellm#1053. Only the ends are known: answers that were not streamed.
    run = trace(
        *(
            record(f"r{i}", sched=200 * i, send=300 * i, end=300 * (i + 1), completion_tokens=7)
            for i in range(6)
        )
    )
    summary = summarize(run)
    assert [m.dispatch_delay for m in summary.requests] == [0, 100, 200, 300, 400, 500]
    group = summary.all
    assert group["e2e"].mean == 300
    assert group["e2e_from_schedule"].mean == 550
    assert group["e2e_from_schedule"].p99 == pytest.approx(795)
    assert group["e2e_from_schedule"].max == 800
    assert group["ttft"].n == 0


def test_tokens_of_requests_cut_off_by_the_end_were_still_produced():
    # guidellm#77, #92, #529
    def spread(request_id, n, sent, end, **rest):
        stamps = [sent + (end - sent) * (i + 1) / (n + 1) for i in range(n)]
        return record(request_id, stamps, send=sent, end=end, **rest)

    run = trace(
        spread("A", 60, 0, 6000),
        spread("B", 40, 1000, 9000),
        spread("C", 50, 4000, 10000, outcome="cancelled", reason="run_ended"),
    )
    group = summarize(run, window=(0, ns(10_000))).all
    assert group.rates.output_tok_s == 15
    assert group.rates.completed_output_tok_s == 10
    assert group.rates.completed_req_s == 0.2
    assert (group.counts.completed, group.counts.cancelled) == (2, 1)


def test_a_warm_up_is_cut_by_send_for_latencies_and_by_arrival_for_tokens():
    # guidellm#1078, #1073
    run = trace(
        record("w1", [9000, 11000, 12000], send=0, end=12000),
        record("w2", [13000, 14000], send=9500, end=14000),
        record("x1", [11500, 12500, 13500, 14500], send=11000, end=14500),
        record("x2", [19700, 20100, 20500], send=19000, end=20500),
        record("y1", [20600, 20700], send=20000, end=20700),
    )
    summary = summarize(run, window=(ns(10_000), ns(20_000)))
    assert [m.ttft for m in summary.requests] == [500, 700]
    assert summary.all["ttft"].mean == 600
    assert summary.all.rates.output_tokens == 9
    assert summary.all.rates.output_tok_s == pytest.approx(0.9)


def test_a_per_request_average_cannot_show_a_stall():
    # guidellm#1145, agentgateway#2984
    def stream(request_id, gaps):
        stamps = [100]
        for gap in gaps:
            stamps.append(stamps[-1] + gap)
        return record(request_id, stamps, end=stamps[-1], class_name=request_id)

    stall = stream("stall", [10] * 40 + [505] + [10] * 30 + [505] + [10] * 27)
    steady = stream("steady", [20] * 99)
    summary = summarize(trace(stall, steady), limits=Limits(gap_ms=100))
    for name, p50, p99, largest, over in (("stall", 10, 505, 505, 2), ("steady", 20, 20, 20, 0)):
        group = summary[name]
        assert group["tpot"].mean == 20
        assert (group["itl"].p50, group["itl"].p99, group["itl"].max) == (p50, p99, largest)
        assert group.gaps_over_limit == over


def test_percentiles_interpolate_linearly():
    # cs249r_book#1936, ai-agent-book#225, hey#120, tufte#67
    hundred, ten = range(1, 101), range(100, 1001, 100)
    table = [(hundred, 50, 50.5), (hundred, 99, 99.01), ([10, 20, 30], 99, 29.8)]
    for samples, p, expected in (*table, (ten, 95, 955), (ten, 99, 991)):
        assert percentile(list(samples), p) == pytest.approx(expected)


def test_a_p99_of_fewer_than_a_hundred_samples_is_flagged():
    few = summarize(trace(*(record(f"r{i}", [i + 1], end=i + 1) for i in range(99))))
    enough = summarize(trace(*(record(f"r{i}", [i + 1], end=i + 1) for i in range(100))))
    assert few.all["ttft"].thin_p99
    assert any("slowest" in note for note in few.notes)
    assert "98.02*" in few.to_markdown()
    assert enough.all["ttft"].p99 == pytest.approx(99.01)
    assert not enough.all["ttft"].thin_p99
    assert not any("slowest" in note for note in enough.notes)
    without = summarize(few.trace, percentiles=(50,))
    assert not any("p99" in note for note in without.notes), "nobody asked for it"
    assert enough.to_dict()["percentile_method"] == "linear"


def test_mean_itl_below_mean_tpot_is_another_weighting_not_an_error():
    # vllm#6531
    run = trace(
        record("A", [100, 200], completion_tokens=2, end=200),
        record("B", range(100, 201, 10), completion_tokens=11, end=200),
    )
    group = summarize(run).all
    assert group["tpot"].mean == 55
    assert group["itl"].n == 11
    assert group["itl"].mean == pytest.approx(18.181818181818183)
    assert group["itl"].p50 == 10


def test_an_error_frame_after_http_200_is_a_failure():
    # ccLoad#69, clicky#132, gpustack#1677, guidellm#444
    run = trace(
        record("ok", range(200, 381, 20), completion_tokens=10, end=382),
        record("half", [150, 170, 190], end=195, outcome="failed", reason="error frame"),
        record("now", end=5, outcome="failed", reason="error frame"),
    )
    group = summarize(run).all
    assert (group.counts.completed, group.counts.failed) == (1, 2)
    assert (group["ttft"].n, group["ttft"].max) == (1, 200)
    assert (group["e2e"].n, group["e2e"].max) == (1, 380)
    assert group.rates.output_tokens == 13
    assert group.rates.completed_output_tokens == 10
    assert group.counts.failed / group.counts.submitted == pytest.approx(2 / 3)


def test_the_books_balance_in_total_and_per_class():
    # guidellm#1102, vllm#55634, vllm#26478
    def request(number, class_name, outcome, ttft=None, **rest):
        events = [] if ttft is None else [ttft]
        sent = None if outcome == "cancelled_before_send" else 0
        end = 500 if outcome != "in_flight" else None
        return record(
            f"r{number}", events, send=sent, end=end, outcome=outcome, class_name=class_name, **rest
        )

    fast, slow = 100, 400
    run = trace(
        request(0, "chat", "completed", fast),
        request(1, "chat", "completed", fast),
        request(2, "chat", "completed", slow),
        request(3, "chat", "rejected"),
        request(4, "chat", "rejected"),
        request(5, "chat", "cancelled_before_send", reason="scripted"),
        request(6, "chat", "failed"),
        request(7, "doc", "completed", fast),
        request(8, "doc", "completed", fast),
        request(9, "doc", "rejected"),
        request(10, "doc", "cancelled", reason="scripted"),
        request(11, "doc", "in_flight"),
    )
    summary = summarize(run, limits=Limits(ttft_ms=200))

    def books(group):
        c = group.counts
        return (
            c.submitted,
            c.rejected,
            c.cancelled_before_send,
            c.admitted,
            c.completed,
            c.failed,
            c.cancelled,
            c.in_flight_at_end,
            group.good,
            group.judged,
        )

    assert books(summary.all) == (12, 3, 1, 8, 5, 1, 1, 1, 4, 9)
    assert books(summary["chat"]) == (7, 2, 1, 4, 3, 1, 0, 0, 2, 6)
    assert books(summary["doc"]) == (5, 1, 0, 4, 2, 0, 1, 1, 2, 3)
    assert summary.all.attainment == pytest.approx(0.4444444444444444)
    assert summary["chat"].attainment == pytest.approx(0.3333333333333333)
    assert summary["doc"].attainment == pytest.approx(0.6666666666666666)


def test_output_total_and_stream_rates_are_three_rates():
    # InferenceX#293, llmgateway#2927, llmnop#11
    stamps = [2000 + 2000 * i / 199 for i in range(200)]
    r = record(events=stamps, prompt_tokens=50_000, completion_tokens=200, end=4000)
    group = summarize(trace(r)).all
    assert group.rates.output_tok_s == 50
    assert group.rates.total_tok_s == 12_550
    assert group["tpot"].mean == pytest.approx(10.050251256281408)
    assert group["stream_rate"].mean == pytest.approx(99.5)
    assert group["e2e_rate"].mean == 50


def test_a_prompt_counts_though_its_answer_came_whole():
    whole = record(prompt_tokens=90, completion_tokens=10, end=2000)
    rates = summarize(trace(whole)).all.rates
    assert (rates.output_tok_s, rates.prompt_tokens, rates.total_tok_s) == (5, 90, 50)


def test_the_realized_rate_is_measured_over_the_intervals_between_sends():
    # vllm#21104
    run = trace(*(record(f"r{i}", sched=5 * i, send=5.5 * i, end=100) for i in range(10)))
    summary = summarize(run)
    rates = summary.all.rates
    assert rates.offered_req_s == pytest.approx(200)
    assert rates.realized_req_s == pytest.approx(181.8181818181818)
    assert rates.shortfall_percent == pytest.approx(9.090909090909093)
    assert summary.requests[-1].dispatch_delay == 4.5

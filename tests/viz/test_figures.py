"""Figures say what the trace says: every bar and dot can be found in the records."""

from __future__ import annotations

import pytest

from llmlab.measure.per_request import request_metrics
from llmlab.perf.hardware import Hardware
from llmlab.trace import RequestRecord, StepRecord, TokenEvent, Trace
from llmlab.viz.cards import card_html, four_numbers
from llmlab.viz.figures.itl_strip import gaps_by_class, itl_strip, strip_rows
from llmlab.viz.figures.request_timeline import (
    MOST_BARS,
    request_timeline,
    spans,
    timeline_rows,
)
from llmlab.viz.figures.roofline import Point, roofline
from llmlab.viz.figures.runs_compared import Run, runs_compared, runs_summary, update_runs
from llmlab.viz.figures.step_gantt import gantt_rows, step_gantt

MS = 1_000_000


def test_the_timeline_starts_at_send_and_has_a_bar_for_every_step(trace):
    found = spans(trace, "a")
    assert [(s.row, s.start, s.end) for s in found[:4]] == [
        ("preprocessing", 0, 2),
        ("queue", 2, 12),
        ("prefill", 12, 32),
        ("prefill", 32, 52),
    ]
    assert [s.end for s in found if s.row == "decode"] == [62, 72, 112, 122]
    assert "1 other request in the step" in found[-1].note
    assert timeline_rows(trace, "a")[-1] == ["decode", "4", "52.0 to 122.0", "70.0"]


def test_the_first_token_is_marked_at_ttft(trace):
    figure = request_timeline(trace, "b")
    assert [a.text for a in figure.layout.annotations] == [
        "first token: TTFT 52 ms",
        "last token: 62 ms",
    ]
    bars = {bar.name: list(bar.x) for bar in figure.data}
    assert bars["prefill"] == [40]
    assert bars["decode"] == [10]


def test_a_preempted_request_shows_its_second_wait(trace):
    trace.requests["a"].preemptions = [(62 * MS, 70 * MS), (80 * MS, None)]
    assert [(s.start, s.end) for s in spans(trace, "a") if s.row == "queue"] == [
        (2, 12),
        (62, 70),
    ]


def test_a_request_that_never_ran_has_an_empty_timeline():
    trace = Trace(requests={"x": RequestRecord("x")})
    figure = request_timeline(trace, "x")
    assert all(not bar.x for bar in figure.data)


def test_a_very_long_answer_is_drawn_with_few_bars_that_cover_the_same_time():
    steps = [StepRecord(i, i * MS, (i + 1) * MS, [("a", 1, i, True)]) for i in range(5000)]
    trace = Trace(requests={"a": RequestRecord("a", t_send=0)}, steps=steps)
    found = spans(trace, "a")
    assert len(found) <= MOST_BARS
    assert found[0].start == 0
    assert found[-1].end == 5000


def test_a_simulated_trace_says_so_in_every_title(trace):
    trace.meta["simulated"] = True
    for figure in (request_timeline(trace, "a"), step_gantt(trace), itl_strip(trace)):
        assert "simulated" in figure.layout.title.text


def test_the_gantt_counts_decode_and_prompt_tokens_of_each_step(trace):
    figure = step_gantt(trace, budget=32)
    decode, prompt = figure.data
    assert list(decode.y) == [0, 0, 1, 1, 1, 2]
    assert list(prompt.y) == [16, 4, 0, 0, 30, 0]
    assert list(decode.width) == [20, 20, 10, 10, 40, 10]
    assert [row[:3] for row in gantt_rows(trace)] == [
        ["decode only", "3", "4"],
        ["prompt only", "2", "20"],
        ["mixed", "1", "31"],
    ]


def test_the_gantt_of_few_steps_is_marked_where_steps_begin_and_end(trace):
    assert list(step_gantt(trace).layout.xaxis.tickvals)[:2] == [0, 20]
    trace.steps *= 2
    assert step_gantt(trace).layout.xaxis.tickvals is None


def test_the_strip_keeps_classes_apart_and_shows_the_stall(trace):
    gaps = gaps_by_class(trace)
    assert [gap for _, gap in gaps["default"]] == [10, 10, 40, 10]
    assert [gap for _, gap in gaps["doc"]] == [10]
    assert strip_rows(trace)[0] == ["default", "4", "10.0", "35.5", "39.1", "40.0"]


def test_two_tokens_that_came_in_one_read_have_no_gap_between_them():
    stamps = [TokenEvent(t * MS) for t in (10, 10, 20, 20, 50)]
    trace = Trace(requests={"a": RequestRecord("a", t_send=0, events=stamps)})
    assert gaps_by_class(trace) == {"default": [(20, 5), (20, 5), (50, 30)]}


def test_the_strip_never_thins_out_the_longest_gap():
    stamps = [TokenEvent(i * MS) for i in range(5000)] + [TokenEvent(5900 * MS)]
    record = RequestRecord("a", t_send=0, events=stamps)
    figure = itl_strip(Trace(requests={"a": record}))
    assert len(figure.data[0].y) <= 500
    assert max(figure.data[0].y) == 901


def test_the_card_shows_dashes_before_a_run_and_the_sample_size_after(trace):
    assert [n.value for n in four_numbers(None)] == ["–"] * 4
    metrics = request_metrics(trace.requests["a"])
    ttft, tpot, itl, rate = four_numbers(metrics, metrics.e2e_rate)
    assert (ttft.value, tpot.value, rate.value) == ("52", "17.5", "41.0")
    assert "4 gaps" in itl.note
    assert "slowest" in itl.note


def test_text_from_outside_is_escaped_in_cards():
    card = four_numbers(None)
    evil = [type(n)("<script>", n.value, n.unit, n.felt_by, n.note) for n in card]
    assert "<script>" not in card_html(evil)


def test_runs_line_up_and_the_sentence_gives_the_ratio():
    runs = [Run(32, 8, 100.0, 20.0, 240.0), Run(256, 8, 400.0, 21.0, 547.0)]
    figure = runs_compared()
    update_runs(figure, runs)
    assert list(figure.data[0].x) == [100, 400]
    assert list(figure.data[1].x) == [140, 147]
    assert "TTFT 400 ms (4.0x)" in runs_summary(runs)
    assert "TPOT" not in runs_summary([Run(8, 1, 50, None, 50), Run(8, 1, 50, None, 50)])


HARDWARE = Hardware("demo", "Demo device", {"fp32": 1e12}, bandwidth=1e11, memory=1e9)


def test_the_roof_bends_at_the_ridge_and_points_keep_their_phase():
    points = [Point("B=1", "decode", 2.0, 1e11), Point("512 tokens", "prefill", 200.0, 8e11)]
    figure = roofline(HARDWARE, "fp32", points, simulated=True)
    roof = dict(zip(figure.data[0].x, figure.data[0].y, strict=True))
    assert roof[10.0] == pytest.approx(1e12)
    assert min(roof.values()) < 1e12 == max(roof.values())
    names = {t.name: list(t.x) for t in figure.data[1:]}
    assert names == {"decode": [2.0], "prefill": [200.0], "mixed": []}

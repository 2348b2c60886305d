"""Panels on a real engine (the tiny model): they stream, stop at once, and leave nothing behind."""

from __future__ import annotations

import time

import pytest

from llmlab.config import EngineConfig
from llmlab.engine import Engine, load_model
from llmlab.viz.panels.knob_panel import KnobPanel
from llmlab.viz.panels.request_panel import RequestPanel, show_request
from tests.viz.idle import wait_idle


@pytest.fixture(scope="module")
def model():
    return load_model("tiny")


@pytest.fixture
def engine(model):
    limit = min(1024, model.config.max_position_embeddings)
    return Engine(model, config=EngineConfig(max_num_batched_tokens=64, max_model_len=limit))


def test_a_run_shows_the_text_the_timeline_and_four_numbers(engine):
    panel = RequestPanel(engine, "hello", max_tokens=12)
    panel.start()
    wait_idle(panel.live)
    assert "Done" in panel.status.value
    assert panel.card.value.count('role="listitem"') == 4
    bars = {bar.name: len(bar.x) for bar in panel.figure.data}
    assert bars["prefill"] >= 1
    assert 1 <= bars["decode"] <= 12
    assert engine.scheduler.num_blocks_used == 0


def test_stop_ends_within_a_step_and_frees_the_blocks(engine):
    panel = RequestPanel(engine, "hello " * 20, max_tokens=256)
    slow = engine.step
    engine.step = lambda: (time.sleep(0.02), slow())[1]  # as slow as a real model's decode
    panel.start()
    while not engine.trace.steps:
        time.sleep(0.002)
    assert engine.scheduler.num_blocks_used > 0
    panel.halt.click()
    before = len(engine.trace.steps)
    wait_idle(panel.live)
    assert len(engine.trace.steps) <= before + 2  # the one that ran, and one just let through
    assert engine.scheduler.num_blocks_used == 0
    assert "Stopped" in panel.status.value
    assert list(engine.trace.requests.values())[-1].outcome == "cancelled"
    assert not panel.go.disabled


def test_an_empty_prompt_is_told_apart_and_starts_nothing(engine):
    panel = RequestPanel(engine, "   ")
    panel.go.click()
    assert "empty" in panel.status.value
    assert not engine.trace.requests


def test_a_second_run_while_one_runs_is_refused(engine):
    panel = RequestPanel(engine, "hello", max_tokens=200)
    panel.start()
    panel.start()
    panel.live.cancel(wait=5)
    assert len(engine.trace.requests) == 1


def test_an_error_in_the_engine_is_shown_and_the_panel_lives_on(engine):
    panel = RequestPanel(engine, "x" * 5000)
    panel.start()
    wait_idle(panel.live)
    assert "ValueError" in panel.status.value
    panel.prompt.value = "short"
    panel.start()
    wait_idle(panel.live)
    assert "Done" in panel.status.value


def test_each_settled_knob_sends_one_request_of_that_size(engine):
    panel = KnobPanel(engine, prompt_tokens=16, output_tokens=4)
    panel.prompt.slider.value = 32
    wait_idle(panel.live)
    panel.output.box.value = 8
    wait_idle(panel.live)
    assert [(r.prompt_tokens, r.output_tokens) for r in panel.runs] == [(32, 4), (32, 8)]
    last = list(engine.trace.requests.values())[-1]
    assert (last.prompt_tokens, last.completion_tokens) == (32, 8)
    assert panel.table.value.count("<tr>") == 3


def test_the_static_form_of_a_request_needs_no_widget(engine):
    panel = RequestPanel(engine, "hello")
    assert panel.run("hello", 5) is not None
    bundle = show_request(engine.trace)._repr_mimebundle_()
    assert "TTFT" in bundle["text/plain"]
    assert "<caption" in bundle["text/html"]


def test_showing_an_empty_trace_says_what_to_do(engine):
    with pytest.raises(ValueError, match="run one first"):
        show_request(engine.trace)


def test_two_panels_and_a_cell_on_one_engine_each_get_all_their_tokens(engine):
    """A student presses Run, drags a knob, and runs the next cell, all while the first goes on."""
    asked, knobs = RequestPanel(engine, "hello", max_tokens=120), KnobPanel(engine, 16, 40)
    asked.start()
    knobs.start()
    mine = knobs.run(24, 30)
    wait_idle(asked.live)
    wait_idle(knobs.live)
    assert "Done" in asked.status.value
    assert mine is not None
    assert {run.output_tokens for run in knobs.runs} == {30, 40}
    assert [r.outcome for r in engine.trace.requests.values()] == ["completed"] * 3
    assert engine.scheduler.num_blocks_used == 0


def test_a_size_that_is_none_names_what_is_wrong(engine):
    panel = KnobPanel(engine)
    for size in (("a", 3), (16.5, 2), (0, 2), (16, -1)):
        said = r"KnobPanel\.(prompt|output)_tokens = .*: must be a whole"
        with pytest.raises(ValueError, match=said):
            panel.run(*size)
    assert not engine.trace.requests


def test_time_begins_at_nought_before_the_first_run_and_after(engine):
    panel = KnobPanel(engine)
    assert panel.figure.layout.xaxis.range[0] == 0
    longest = panel.run(24, 3).e2e
    assert panel.figure.layout.xaxis.range[0] == 0
    assert panel.figure.layout.xaxis.range[1] > longest


def test_a_run_from_code_turns_the_knobs_and_runs_once(engine):
    panel = KnobPanel(engine)
    panel.run(24, 3)
    assert (panel.prompt.value, panel.output.value) == (24, 3)
    assert not panel.live.busy
    assert len(panel.runs) == 1
    panel.run(3, 2)  # the knob begins at 8: it stays where it is
    assert panel.prompt.value == 24
    assert [run.prompt_tokens for run in panel.runs] == [24, 3]

"""The load sweep says what its traces say, and the verdict follows from the limits."""

from __future__ import annotations

import time

import pytest

from llmlab.engine import load_model
from llmlab.viz.figures.load_sweep import Loaded, load_sweep, loaded, safe_users, sweep_rows
from llmlab.viz.panels.controls import REAL, SIMULATED
from llmlab.viz.panels.load_panel import LoadPanel
from tests.viz.idle import wait_idle
from tests.viz.speed import seconds_a_move


def run(users: int, ttft: float | None, tpot: float | None) -> Loaded:
    return Loaded(users, ttft, tpot, tpot, 100.0 * users, 10, 0, True)


def test_a_run_is_read_from_its_trace(trace):
    one = loaded(trace, users=2)
    assert (one.ttft, one.tpot) == (52, 13.75)
    assert one.rate == pytest.approx(7 / 0.122, rel=1e-6)
    assert one.preempted == 0
    assert sweep_rows([one])[0][0] == "2"


def test_safe_users_stops_at_the_first_run_that_misses():
    runs = [run(1, 100, 10), run(4, 500, 20), run(16, 900, 30), run(64, 400, 12)]
    assert safe_users(runs, 1000, 20) == 4
    assert safe_users(runs, 500, 20) == 4
    assert safe_users(runs, 499, 20) == 1
    assert safe_users(runs, 50, 20) is None
    assert safe_users([run(1, None, None)], 100, 10) is None


def test_the_figure_holds_three_series_and_the_limit():
    figure = load_sweep([run(1, 100, 10), run(4, 500, 20)], tpot_limit=15)
    assert [list(line.y) for line in figure.data] == [[100, 500], [10, 20], [100.0, 400.0]]
    assert figure.layout.shapes[0].y0 == 15
    assert "simulated" in figure.layout.title.text


@pytest.fixture(scope="module")
def panel():
    return LoadPanel(users=(1, 8, 64))


def test_load_raises_the_rate_and_every_wait(panel):
    runs = panel.sweep()
    assert runs[0].rate < runs[1].rate < runs[2].rate
    assert runs[0].tpot < runs[1].tpot < runs[2].tpot
    assert runs[0].ttft < runs[2].ttft


def test_a_tighter_limit_never_allows_more_users(panel):
    panel.tpot.box.value = 100
    many = panel.sentence()
    panel.tpot.box.value = 1
    assert "Not even 1 user" in panel.sentence()
    assert "Up to 64 users" in many


def test_a_model_that_does_not_fit_is_an_error_in_words(panel, monkeypatch):
    monkeypatch.setattr("llmlab.viz.panels.controls.under_test", lambda: False)
    panel.model.value = "llama-3.1-70b"
    assert "✗" in panel.status.value
    panel.model.value = "qwen3-30b-a3b"
    assert "Simulated" in panel.status.value


@pytest.mark.timing
def test_a_knob_answers_within_200_ms():
    assert seconds_a_move(LoadPanel().prompt.box, range(512, 624, 16)) < 0.2


def test_the_same_knobs_run_on_this_machine_and_the_figure_says_which():
    panel = LoadPanel(users=(1, 2), real_model=load_model("tiny"), real_users=(1, 2))
    assert "simulated" in panel.figure.layout.title.text
    panel.prompt.box.value, panel.output.box.value = 16, 8
    panel.where.value = REAL
    assert "6 requests" in panel.status.value
    assert panel.model.disabled
    panel.go.click()
    wait_idle(panel.live)
    assert [run.users for run in panel._runs] == [1, 2]
    assert "measured here" in panel.figure.layout.title.text
    assert "Measured on this machine" in panel.status.value
    panel.where.value = SIMULATED
    assert "simulated" in panel.figure.layout.title.text
    assert "Simulated" in panel.status.value
    assert not panel.model.disabled


def test_stop_ends_a_real_sweep_and_keeps_what_ended():
    panel = LoadPanel(users=(1,), real_model=load_model("tiny"), real_users=(1, 64))
    panel.prompt.box.value, panel.output.box.value = 16, 8
    panel.where.value = REAL
    panel.go.click()
    while panel.live.busy and len(panel._runs) < 1:
        time.sleep(0.002)
    panel.halt.click()
    wait_idle(panel.live)
    assert "Stopped" in panel.status.value or [run.users for run in panel._runs] == [1, 64]

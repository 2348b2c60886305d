"""The race: lanes hold one request at a time, steps count as they should, the panel stops."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

import pytest

from llmlab.engine import load_model
from llmlab.trace import Trace
from llmlab.viz.figures.race import lanes, race, race_rows, race_summary, update_race
from llmlab.viz.panels.controls import REAL, SIMULATED
from llmlab.viz.panels.race_panel import RacePanel
from llmlab.viz.race import (
    KINDS,
    draw_lengths,
    harmonic,
    race_real,
    race_simulated,
    speed_up,
)
from tests.viz.idle import wait_idle
from tests.viz.speed import seconds_a_move


@pytest.fixture(scope="module")
def model():
    return load_model("tiny")


@pytest.fixture(scope="module")
def laps():
    return race_simulated([20, 2, 2, 2, 20, 2, 2, 2], 4)


def test_a_static_batch_ends_with_its_longest_member(laps):
    static, continuous = laps
    assert len(static.trace.steps) == 2 * 20
    assert len(continuous.trace.steps) < 30
    assert static.tokens == continuous.tokens == 52
    assert static.busy == pytest.approx(52 / (4 * 40))


def test_no_slot_holds_two_requests_at_once(laps):
    for lap in laps:
        bars = lanes(lap)
        assert len(bars) == 8
        for slot in range(4):
            mine = sorted((b.start, b.end) for b in bars if b.slot == slot)
            assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(mine))


def test_equal_lengths_make_the_policies_equal():
    static, continuous = race_simulated(draw_lengths("fixed", 32, 24, 8), 8)
    assert len(static.trace.steps) == len(continuous.trace.steps) == 4 * 24
    assert static.ms == pytest.approx(continuous.ms, rel=0.001)
    assert "same time" in race_summary([static, continuous])


def test_exponential_lengths_lose_the_harmonic_number_and_fixed_ones_nothing():
    assert [round(harmonic(n), 2) for n in (4, 8, 16, 32, 64)] == [2.08, 2.72, 3.38, 4.06, 4.74]
    assert speed_up("exponential", 4, 200) == pytest.approx(harmonic(4), rel=0.05)
    assert speed_up("fixed", 8, 10) == pytest.approx(1.0, rel=1e-3)


def test_lengths_are_the_same_for_the_same_seed_and_bad_ones_are_refused():
    for kind in KINDS:
        assert draw_lengths(kind, 16, 24, 4) == draw_lengths(kind, 16, 24, 4)
        assert len(draw_lengths(kind, 16, 24, 4)) == 16
    with pytest.raises(ValueError, match="one of"):
        draw_lengths("gaussian", 16, 24, 4)
    with pytest.raises(ValueError, match="requests"):
        draw_lengths("fixed", 0, 24, 4)


def test_the_figure_and_its_table_say_the_same(laps):
    figure = race(laps)
    decode = next(d for d in figure.data if d.name == "decode")
    assert len(decode.x) == 16
    assert "simulated" in figure.layout.title.text
    rows = race_rows(laps)
    assert [row[0] for row in rows] == ["static", "continuous"]
    for row, label in zip(rows, figure.layout.yaxis.ticktext, strict=True):
        assert row[1] in label
    update_race(figure, [])
    assert len(figure.data[0].x or ()) == 0


def test_a_real_race_says_measured_and_gives_every_token(model):
    laps = race_real(model, [8, 2, 2, 2], 2)
    assert [lap.tokens for lap in laps] == [14, 14]
    assert not laps[0].trace.simulated
    assert "Measured" in race_summary(laps)
    assert "simulated" not in race(laps).layout.title.text


@pytest.mark.timing
def test_a_knob_answers_within_200_ms():
    assert seconds_a_move(RacePanel().slots.box, range(2, 13)) < 0.2


def test_a_knob_runs_the_race_anew_and_says_simulated():
    panel = RacePanel()
    for slots in (2, 12):
        panel.slots.box.value = slots
        assert panel.laps[0].slots == slots
    assert "Simulated" in panel.status.value
    assert "simulated" in panel._repr_mimebundle_()["text/plain"]
    assert list(panel.where.options) == [SIMULATED]
    laps = panel.run(3, 8, 8, "fixed")
    assert laps[0].slots == 3
    assert panel.laps[0].slots == 12  # what is on the screen is what the knobs say


def test_a_real_race_in_the_panel_ends_and_draws(model):
    panel = RacePanel(model)
    panel.where.value = REAL
    panel.requests.box.value = 8
    panel.go.click()
    wait_idle(panel.live)
    assert "Measured" in panel.status.value
    assert not panel.laps[0].trace.simulated
    assert not panel.go.disabled


def test_a_race_is_drawn_while_the_engine_still_takes_requests(model, monkeypatch):
    """A dict that grows under a loop over it ends the loop: here one that always does."""

    class Growing(dict):
        def values(self):
            raise RuntimeError("dictionary changed size during iteration")

    panel = RacePanel(model)

    def growing_race(*_, watch, **__):
        watch("static", Trace(requests=Growing(panel.laps[0].trace.requests)))
        end = time.monotonic() + 5
        while "Running static" not in panel.status.value and time.monotonic() < end:
            time.sleep(0.01)
        return panel.laps

    monkeypatch.setattr("llmlab.viz.panels.race_panel.race_real", growing_race)
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    panel.run(4, 4, 4, "fixed", real=True)
    assert "Running static" in panel.status.value


def test_stop_ends_a_real_race_within_a_step(model, monkeypatch):
    from llmlab.engine import Engine

    step, steps = Engine.step, []

    def slow(self):
        steps.append(self)
        time.sleep(0.02)  # as slow as a real model's decode
        return step(self)

    monkeypatch.setattr(Engine, "step", slow)
    panel = RacePanel(model)
    panel.where.value = REAL
    panel.mean.box.value = 128
    panel.go.click()
    while not steps:
        time.sleep(0.002)
    panel.halt.click()
    before = len(steps)
    wait_idle(panel.live)
    assert len(steps) <= before + 1  # the one that had just been let through
    assert "Stopped" in panel.status.value


def test_a_real_race_without_a_model_is_a_clear_error():
    with pytest.raises(ValueError, match="model"):
        RacePanel().run(2, 4, 4, "fixed", real=True)

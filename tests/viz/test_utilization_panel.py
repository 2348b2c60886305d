"""A gauge is counted work over measured time over a ceiling that is named, and nothing else."""

from __future__ import annotations

import pytest

from llmlab.engine import load_model
from llmlab.perf.hardware import Hardware, load_hardware
from llmlab.perf.roofline import PHASES, PhaseSummary, Utilization
from llmlab.viz.figures.gauges import (
    ceilings_text,
    gauges,
    gauges_rows,
    gauges_summary,
    update_gauges,
)
from llmlab.viz.panels.controls import REAL, SIMULATED
from llmlab.viz.panels.utilization_panel import UtilizationPanel
from tests.viz.idle import wait_idle
from tests.viz.speed import seconds_a_move

CEILINGS = Hardware("demo", "Demo", {"fp32": 1e12}, bandwidth=1e11, memory=1e9, source="measured")
DECODE = PhaseSummary("decode", 5, 2.0, Utilization(1e9, 9e8, 0.01, 1e12, 1e11))
PREFILL = PhaseSummary("prefill", 1, 9.0, Utilization(2e9, 1e7, 0.01, 1e12, 1e11))


@pytest.fixture(scope="module")
def model():
    return load_model("tiny")


def bars(figure):
    used = next(bar for bar in figure.data if bar.name == "in use")
    return dict(zip(used.y, used.x, strict=True)), dict(zip(used.y, used.text, strict=True))


def test_a_bar_is_work_over_time_over_the_ceiling():
    shares, texts = bars(gauges([DECODE, PREFILL], simulated=False))
    assert shares["decode · compute"] == pytest.approx(10)
    assert shares["decode · bandwidth"] == pytest.approx(90)
    assert shares["prefill · compute"] == pytest.approx(20)
    assert shares["mixed · compute"] == 0
    assert texts["decode · bandwidth"] == "90 % near"
    assert texts["decode · compute"] == "10 %"
    assert texts["mixed · bandwidth"] == "no such step yet"


def test_the_words_name_the_roof_and_the_ceilings():
    assert gauges_summary([DECODE, PREFILL]) == (
        "Decode steps are near the bandwidth roof; prefill steps are near neither roof"
    )
    assert gauges_summary([]) == "No step yet"
    assert gauges_rows([DECODE])[0] == ["decode", "5", "2.0", "10 %", "90 %", "1.1", "bandwidth"]
    assert "1 TFLOP/s (fp32 weights) and 100 GB/s, measured on this machine" in ceilings_text(
        CEILINGS, "fp32"
    )
    assert "data sheet" in ceilings_text(load_hardware("h100-sxm"), "bf16")


def test_rows_stay_where_they_are_while_a_run_is_live():
    figure = gauges([], simulated=True)
    before = list(figure.data[1].y)
    update_gauges(figure, [DECODE], simulated=True)
    assert list(figure.data[1].y) == before
    assert len(before) == 2 * len(PHASES)
    assert "simulated" in figure.layout.title.text


def test_a_share_over_its_ceiling_still_fits_into_the_picture():
    hot = PhaseSummary("decode", 1, 1.0, Utilization(1e9, 3e9, 0.01, 1e12, 1e11))
    figure = gauges([hot], simulated=False)
    assert figure.layout.xaxis.range[1] > 300


def test_simulated_bigger_batches_use_more_of_the_matrix_units():
    panel = UtilizationPanel()

    def decode(requests):
        found = {p.phase: p for p in panel.run(requests, 128, 16)}
        return found["decode"].whole.compute_share

    assert decode(32) > 5 * decode(1)
    assert "imulated" in panel.sentence()
    assert "data sheet" in panel.caption()


def test_a_real_run_is_live_counts_every_step_and_says_which_ceilings(model):
    panel = UtilizationPanel(model, CEILINGS)
    panel.where.value = REAL
    assert "Run serves" in panel.status.value
    panel.start()
    wait_idle(panel.live)
    assert {p.phase for p in panel.phases} >= {"prefill", "decode"}
    assert sum(p.steps for p in panel.phases if p.phase == "decode") == panel.output.value - 1
    assert "Measured on this machine" in panel.status.value
    assert "measured on this machine" in panel.caption()
    assert "simulated" not in panel.figure.layout.title.text
    panel.where.value = SIMULATED
    assert "simulated" in panel.figure.layout.title.text


def test_a_run_from_code_shows_in_the_menu_and_the_knobs_and_runs_nothing_else(model):
    panel = UtilizationPanel(model, CEILINGS)
    panel.run(2, 16, 3, real=True)
    assert panel.where.value == REAL
    assert (panel.requests.value, panel.prompt.value, panel.output.value) == (2, 16, 3)
    assert "Measured on this machine" in panel.status.value
    assert not panel.live.busy
    panel.requests.box.value = 3  # by hand again: a real run waits for Run
    assert "Run serves" in panel.status.value


def test_stop_ends_a_real_run_at_once(model):
    panel = UtilizationPanel(model, CEILINGS)
    panel.where.value = REAL
    panel.requests.box.value, panel.output.box.value = 64, 64
    panel.start()
    panel.halt.click()
    assert panel.live.cancel(wait=5)
    assert sum(p.steps for p in panel.phases) < 64
    assert "Stopped" in panel.status.value


def test_without_a_calibration_the_error_says_what_to_run(model, tmp_path, monkeypatch):
    monkeypatch.setenv("LLMLAB_DATA_DIR", str(tmp_path))
    monkeypatch.setattr("llmlab.engine.Engine.step", lambda self: pytest.fail("ran before it knew"))
    with pytest.raises(ValueError, match="llmlab calibrate"):
        UtilizationPanel(model).run(1, 8, 2, real=True)


@pytest.mark.timing
def test_a_knob_answers_within_200_ms():
    assert seconds_a_move(UtilizationPanel().requests.box, range(9, 16)) < 0.2

"""Measuring a machine: real figures, kept and read back."""

from __future__ import annotations

import pytest

from llmlab.engine import load_model
from llmlab.perf import machine
from llmlab.perf.calibrate import (
    calibration_loads,
    cost_model,
    measure_ceilings,
    median_by_shape,
    time_engine_steps,
)
from llmlab.perf.hardware import Hardware
from llmlab.sim.simulate import this_machine


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMLAB_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.mark.slow
def test_ceilings_are_positive_repeated_and_have_a_spread():
    ceilings = measure_ceilings("cpu", repeats=2)
    assert len(ceilings.bandwidth.samples) == 2
    assert ceilings.bandwidth.median > 1e8
    assert ceilings.flops["fp32"].median > 1e8
    assert ceilings.bandwidth.spread >= 0
    assert ceilings.hardware().ridge("fp16") > 0


def test_no_repeats_are_refused():
    with pytest.raises(ValueError, match="repeats = 0"):
        measure_ceilings("cpu", repeats=0)


def test_median_and_spread_by_hand():
    rate = machine.Measured((10.0, 12.0, 11.0))
    assert (rate.median, rate.spread) == (11.0, pytest.approx(2 / 11))


def test_real_engine_steps_are_timed_with_their_shape():
    model = load_model("tiny")
    steps = time_engine_steps(model, budget_s=3.0)
    assert len(steps) > 20
    assert all(step.seconds > 0 for step in steps)
    assert max(step.shape.num_requests for step in steps) > 4
    assert max(step.shape.num_tokens for step in steps) > 100
    merged = median_by_shape(steps)
    assert 4 < len(merged) <= len(steps)


def test_loads_fit_the_context():
    for context in (64, 1024):
        assert all(p + o <= context and p >= 1 for _, p, o in calibration_loads(context))


def test_the_cost_model_knows_how_a_model_is_stored():
    assert cost_model(load_model("tiny")).precision.weights == "fp32"


def test_what_is_kept_is_read_back(folder):
    assert machine.load_machine() is None
    entry = {"peak_tflops": {"fp32": 0.2}, "bandwidth_gb_s": 50.0, "memory_gb": 16.0}
    path = machine.save_machine({"hardware": entry})
    assert path == folder / "machine.yaml"
    kept = machine.machine_hardware()
    assert kept == Hardware(
        "this-machine", "this-machine", {"fp32": 0.2e12}, 50e9, 16e9, source=str(path)
    )
    assert not list(folder.glob("*.tmp"))


def test_a_machine_never_measured_says_what_to_run(folder):
    with pytest.raises(ValueError, match="llmlab calibrate"):
        machine.machine_hardware()


@pytest.mark.parametrize("text", ["", "[1]", "hardware: [", "speed: 3"])
def test_a_damaged_file_says_what_to_run(folder, text):
    folder.mkdir()
    (folder / "machine.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"machine.yaml.*calibrate|calibrate"):
        machine.load_machine()


@pytest.mark.parametrize(
    "kept",
    [
        "hardware: 3",
        "hardware: {}",
        "hardware: {peak_tflops: {fp32: 1}, bandwidth_gb_s: 50, memory_gb: 16}\nprecision: 3",
        "hardware: {peak_tflops: {fp32: 1}, bandwidth_gb_s: 50, memory_gb: 16}\n"
        "constants: {}\nprecision: {speed: 3}",
    ],
)
def test_figures_that_are_damaged_name_the_file(folder, kept):
    folder.mkdir()
    (folder / "machine.yaml").write_text(kept)
    with pytest.raises(ValueError, match=r"machine\.yaml"):
        this_machine()


def test_facts_of_the_machine_are_plausible():
    facts = machine.machine_facts()
    assert 1 <= facts["usable_cores"] <= facts["cores"]
    assert 0 < facts["free_memory_bytes"] < facts["memory_bytes"]
    assert facts["cpu"]

"""Utilization: achieved over ceiling, by phase, with the near roof named."""

from __future__ import annotations

import pytest

from llmlab.perf.cost import CostModel, step_shape
from llmlab.perf.hardware import Hardware
from llmlab.perf.models import load_model_config
from llmlab.perf.roofline import (
    NVML_SENTENCE,
    Utilization,
    annotate,
    attainable_flops,
    by_phase,
    phase,
    utilization,
)
from llmlab.trace import RequestRecord, StepRecord, Trace

ROOFS = Hardware("box", "box", {"fp16": 1e14}, 1e12, 1e11)
COST = CostModel(load_model_config("llama-3.2-1b"))


def test_a_step_that_reads_at_the_ceiling_is_at_the_bandwidth_roof():
    shape = step_shape([(1, 100, True)])
    counted = COST.cost(shape)
    found = utilization(shape, counted.bytes / 1e12, COST, ROOFS)
    assert found.bandwidth_share == pytest.approx(1.0)
    assert found.compute_share == pytest.approx(counted.intensity / 100)
    assert (found.roof, found.near) == ("bandwidth", "bandwidth")


def test_a_long_prefill_is_under_the_compute_roof():
    shape = step_shape([(2000, 0, True)])
    found = utilization(shape, COST.cost(shape).flops / 0.6e14, COST, ROOFS)
    assert found.compute_share == pytest.approx(0.6)
    assert (found.roof, found.near) == ("compute", "compute")


def test_a_step_far_from_both_roofs_is_near_neither():
    assert Utilization(1e9, 1e9, 1.0, 1e14, 1e12).near == "neither"


def test_the_roofline_bends_at_the_ridge():
    ridge = ROOFS.ridge("fp16")
    assert attainable_flops(ridge / 2, 1e14, 1e12) == pytest.approx(0.5e14)
    assert attainable_flops(ridge * 2, 1e14, 1e12) == 1e14


def trace_of_three() -> Trace:
    trace = Trace(requests={n: RequestRecord(n, prompt_tokens=p) for n, p in [("a", 8), ("b", 6)]})
    trace.steps = [
        StepRecord(0, 0, 10_000_000, [("a", 8, 0, False)]),
        StepRecord(1, 10_000_000, 30_000_000, [("a", 1, 8, True), ("b", 6, 0, False)]),
        StepRecord(2, 30_000_000, 35_000_000, [("a", 1, 9, True), ("b", 1, 6, True)]),
    ]
    return trace


def test_steps_fall_into_prefill_mixed_and_decode():
    assert [phase(step) for step in trace_of_three().steps] == ["prefill", "mixed", "decode"]


def test_every_step_is_annotated_with_plain_numbers():
    trace = trace_of_three()
    figures = annotate(trace, COST, ROOFS)
    for step, figure in zip(trace.steps, figures, strict=True):
        assert step.utilization == figure.as_numbers()
    assert trace.steps[1].utilization["flops_per_s"] == pytest.approx(figures[1].flops / 0.02)


def test_the_devices_own_clock_is_believed_where_there_is_one():
    """A step that reads nothing back ends on the host before it ends on the device."""
    trace = trace_of_three()
    trace.steps[0].utilization = {"device_seconds": 0.5}
    figures = annotate(trace, COST, ROOFS)
    assert [figure.seconds for figure in figures] == pytest.approx([0.5, 0.02, 0.005])
    assert trace.steps[0].utilization["device_seconds"] == 0.5


def test_phases_add_up_work_and_time():
    summaries = {s.phase: s for s in by_phase(trace_of_three(), COST, ROOFS)}
    assert {name: s.median_step_ms for name, s in summaries.items()} == {
        "prefill": 10.0,
        "decode": 5.0,
        "mixed": 20.0,
    }
    assert sum(s.whole.seconds for s in summaries.values()) == pytest.approx(0.035)


def test_a_step_without_duration_is_refused():
    with pytest.raises(ValueError, match="seconds = 0"):
        utilization(step_shape([(1, 0, True)]), 0, COST, ROOFS)


def test_the_sentence_about_gpu_utilization_denies_both_meanings():
    assert "neither" in NVML_SENTENCE

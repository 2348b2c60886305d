"""Laws of the step-time model: roofs, overheads, parallelism, and runs of decode steps."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmlab.perf.cost import CostModel, Precision, step_shape
from llmlab.perf.hardware import Hardware, load_hardware
from llmlab.perf.models import load_model_config
from llmlab.sim.step_time import Constants, StepTime, constants_catalog, load_constants

LLAMA = CostModel(load_model_config("llama-3.1-8b"))
H100 = load_hardware("h100-sxm")
IDEAL = Constants(
    compute_efficiency=1.0, bandwidth_efficiency=1.0, step_overhead=0.0, request_overhead=0.0
)


def seconds(entries, cost=LLAMA, hardware=H100, constants=IDEAL):
    return StepTime(cost, hardware, constants).seconds(step_shape(entries))


def test_a_lone_decode_takes_as_long_as_reading_weights_and_context():
    cost = LLAMA.cost(step_shape([(1, 999, True)]))
    assert seconds([(1, 999, True)]) == pytest.approx(cost.bytes / H100.bandwidth)


def test_a_long_prefill_takes_as_long_as_its_arithmetic():
    cost = LLAMA.cost(step_shape([(4096, 0, True)]))
    floor = cost.flops / H100.flops("bf16")
    assert floor < seconds([(4096, 0, True)]) < 1.02 * floor


def test_each_part_takes_the_slower_of_its_two_roofs():
    shape = step_shape([(1, 2000, True)] * 200 + [(500, 0, False)])
    expected = sum(
        max(part.flops / H100.flops("bf16"), part.bytes / H100.bandwidth)
        for part in LLAMA.cost(shape).parts.values()
    )
    assert StepTime(LLAMA, H100, IDEAL).seconds(shape) == pytest.approx(expected, rel=1e-12)


def test_efficiencies_stretch_and_overheads_add():
    base = seconds([(1, 500, True)] * 3)
    slow = dataclasses.replace(IDEAL, bandwidth_efficiency=0.5)
    assert seconds([(1, 500, True)] * 3, constants=slow) == pytest.approx(2 * base)
    late = dataclasses.replace(IDEAL, step_overhead=0.01, request_overhead=0.002)
    assert seconds([(1, 500, True)] * 3, constants=late) == pytest.approx(base + 0.016)


def test_a_wider_decode_is_nearly_free_until_the_knee():
    one, eight, many = (seconds([(1, 0, True)] * n) for n in (1, 8, 1024))
    assert eight < 1.01 * one
    assert many > 3 * one


def test_attention_may_have_efficiencies_of_its_own():
    context = [(1, 100_000, True)]
    weak = dataclasses.replace(IDEAL, attention_bandwidth_efficiency=0.1)
    part = LLAMA.cost(step_shape(context)).parts["attention"].bytes / H100.bandwidth
    assert seconds(context, constants=weak) - seconds(context) == pytest.approx(9 * part)
    assert seconds([(1, 0, True)], constants=weak) == pytest.approx(
        seconds([(1, 0, True)]), rel=1e-4
    )


def test_two_devices_halve_the_work_and_pay_for_talking():
    model = load_model_config("llama-3.1-70b")
    shape = [(1, 1000, True)] * 4
    one = seconds(shape, CostModel(model))
    silent = dataclasses.replace(IDEAL, allreduce_latency=0.0)
    two = seconds(shape, CostModel(model, tensor_parallel=2), constants=silent)
    sent = 2 * 80 * 4 * 8192 * 2 / H100.interconnect  # 2 a layer, 4 tokens, 16 bit, 2 (tp-1)/tp
    assert two == pytest.approx(one / 2 + sent, rel=1e-3)
    late = dataclasses.replace(IDEAL, allreduce_latency=1e-5)
    slower = seconds(shape, CostModel(model, tensor_parallel=2), constants=late)
    assert slower - two == pytest.approx(160e-5)


def test_devices_without_a_link_cannot_work_in_parallel():
    lonely = Hardware("lonely", "lonely", {"fp16": 1e14}, 1e12, 1e11)
    with pytest.raises(ValueError, match="interconnect"):
        StepTime(CostModel(load_model_config("llama-3.1-8b"), tensor_parallel=2), lonely, IDEAL)


def test_narrow_weights_are_read_faster():
    wide, narrow = (
        seconds([(1, 0, True)], CostModel(load_model_config("llama-3.1-8b"), Precision(w, "bf16")))
        for w in ("bf16", "int4")
    )
    assert wide / narrow == pytest.approx(4, rel=0.01)


@given(
    st.integers(1, 100),
    st.integers(0, 10**6),
    st.integers(1, 300),
    st.sampled_from(["llama-3.1-8b", "qwen3-30b-a3b"]),
    st.sampled_from(["t4", "h100-sxm", "m1"]),
)
@settings(deadline=None)
def test_a_run_of_decodes_lasts_what_its_steps_last_one_by_one(requests, context, steps, model, on):
    clock = StepTime(CostModel(load_model_config(model)), load_hardware(on), Constants())
    kv_read = requests + context
    run = clock.decode_run_ns(requests, kv_read, steps)
    pairs = [kv_read + i * requests for i in range(steps)]
    shape = step_shape([(1, 0, True)] * requests)
    one_by_one = [
        clock.step_ns(dataclasses.replace(shape, attention_pairs=kv, kv_read_tokens=kv))
        for kv in pairs
    ]
    assert np.array_equal(run, one_by_one)


def test_stored_constants_load_and_say_what_they_were_fitted_on():
    for name, entry in constants_catalog().entries.items():
        assert load_constants(name).bandwidth_efficiency > 0.3, name
        assert entry["fitted_on"], name
        assert entry["rows"] == len(entry["leave_one_out"]), name


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("constants: {x: {values: {speed: 3}}}", "must map some of"),
        ("constants: {x: {values: {compute_efficiency: 2}}}", "compute_efficiency = 2"),
        ("constants: {x: {values: 3}}", "must map some of"),
        ("constants: {x: {}}", "lacks values"),
    ],
)
def test_bad_constants_name_the_file_and_the_field(tmp_path, text, says):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=says):
        load_constants("x", path)

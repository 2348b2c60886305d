"""Devices: every entry usable and sourced, errors that name the near names."""

from __future__ import annotations

import dataclasses

import pytest
import yaml

from llmlab.perf.hardware import Hardware, hardware_catalog, load_hardware
from llmlab.perf.models import load_model_config

WANTED = {"t4", "l4", "a10g", "rtx-4090", "a100-40gb", "a100-80gb", "h100-sxm", "h100-pcie"}
WANTED |= {"h200", "b200", "m1", "m2"}


def test_each_device_states_rates_bandwidth_memory_and_source():
    names = set(hardware_catalog().entries)
    assert names >= WANTED
    for name in names:
        device = load_hardware(name)
        assert device.flops("fp16") >= device.flops("fp32") > 1e12, name
        assert device.bandwidth > 5e10, name
        assert device.memory > 1e10, name
        assert len(device.source) > 20, name


def test_ridge_point_is_rate_over_bandwidth():
    assert load_hardware("h100-sxm").ridge("fp16") == pytest.approx(989.5e12 / 3.35e12)


def test_rates_are_dense():
    # The sparse rates of the same datasheets are exactly twice these.
    assert load_hardware("a100-80gb").flops("bf16") == 312e12
    assert load_hardware("h100-sxm").flops("fp8") == 1979e12
    assert load_hardware("l4").flops("fp16") == 121e12


def test_weights_narrower_than_the_units_run_at_the_next_wider_rate():
    t4 = load_hardware("t4")
    assert t4.flops("fp8") == t4.flops("int4") == t4.flops("fp16")


def test_names_are_found_whatever_their_case_and_by_alias():
    assert load_hardware("H100") == load_hardware("h100-sxm")
    assert load_model_config("Llama-3.3-70B").name == "llama-3.1-70b"


@pytest.mark.parametrize(
    ("load", "name", "near"),
    [(load_hardware, "h100-sxm5", "h100-sxm"), (load_model_config, "qwen3-06b", "qwen3-0.6b")],
)
def test_an_unknown_name_lists_the_near_ones(load, name, near):
    with pytest.raises(ValueError, match=f"unknown .* did you mean .*{near}"):
        load(name)


def test_a_file_of_ones_own(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "hardware:\n  gadget:\n    peak_tflops: {fp16: 10}\n"
        "    bandwidth_gb_s: 100\n    memory_gb: 8\n"
    )
    gadget = load_hardware("gadget", mine)
    assert (gadget.flops("bf16"), gadget.bandwidth, gadget.memory) == (10e12, 1e11, 8e9)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no entries under the key 'hardware'"),
        ("hardware: [1, 2]", "no entries under the key 'hardware'"),
        ("hardware: {x: 3}", "must be a mapping"),
        ("hardware: {x: {aliases: 5}}", "x.aliases = 5: must be a list"),
        ("hardware: {x: {bandwidth_gb_s: 1, memory_gb: 1}}", "lacks peak_tflops"),
        ("hardware: {x: {peak_tflops: {fp16: 0}, bandwidth_gb_s: 1, memory_gb: 1}}", "> 0"),
        ("hardware: {x: {peak_tflops: {fp16: 1}, bandwidth_gb_s: .nan, memory_gb: 1}}", "> 0"),
        ("hardware: {x: {peak_tflops: {fp16: 1}, bandwidth_gb_s: -1, memory_gb: 1}}", "> 0"),
        ("hardware: {x: {peak_tflops: {fp17: 1}, bandwidth_gb_s: 1, memory_gb: 1}}", "fp17"),
        ("hardware: {x: {peak_tflops: {fp16: fast}, bandwidth_gb_s: 1, memory_gb: 1}}", "fast"),
        (
            "hardware: {x: {peak_tflops: {fp16: 1}, bandwidth_gb_s: 1, memory_gb: 1,"
            " interconnect_gb_s: -1}}",
            "interconnect = -1",
        ),
        ("hardware: {x: {peak_tflops: 5, bandwidth_gb_s: 1, memory_gb: 1}}", "map dtypes"),
        ("hardware: {x: [", "not a yaml file"),
    ],
)
def test_a_bad_file_is_refused_with_what_is_wrong(tmp_path, text, says):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=says):
        load_hardware("x", path)


def test_a_bad_shape_names_the_file_the_model_and_the_field(tmp_path):
    """YAML reads 1e-6, without a point, as a text."""
    path = tmp_path / "mine.yaml"
    shape = dataclasses.asdict(load_model_config("qwen3-0.6b"))
    del shape["name"]
    for field, value in (("rms_norm_eps", "1e-6"), ("rope_theta", 0), ("head_dim", 1.5), ("x", 1)):
        path.write_text(yaml.safe_dump({"models": {"mine": {"shape": {**shape, field: value}}}}))
        with pytest.raises(ValueError, match=rf"mine\.yaml: models\.mine\.shape: .*{field}"):
            load_model_config("mine", path)


def test_a_missing_file_is_one_clear_error(tmp_path):
    with pytest.raises(ValueError, match="cannot be read"):
        load_hardware("x", tmp_path / "absent.yaml")


def test_a_device_without_a_usable_rate_says_what_it_has():
    device = Hardware("odd", "odd", {"int8": 1e12}, 1e11, 1e9)
    with pytest.raises(ValueError, match=r"odd states no rate .* int8"):
        device.flops("fp16")

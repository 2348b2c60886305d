"""The roofline panel and the measured walk: every place is under its roof, and says what it is."""

from __future__ import annotations

import pytest

from llmlab.engine import load_model
from llmlab.perf.hardware import Hardware, hardware_catalog, load_hardware
from llmlab.perf.models import models_catalog
from llmlab.perf.roofline import attainable_flops
from llmlab.viz.panels.roofline_panel import RooflinePanel
from llmlab.viz.walk import decode_walk, prefill_walk, show_walk
from tests.viz.speed import seconds_a_move


@pytest.fixture(scope="module")
def panel():
    return RooflinePanel()


def test_every_model_on_every_device_has_a_place_under_its_roof(panel):
    for model in models_catalog().entries:
        for device in hardware_catalog().entries:
            panel.model.value, panel.device.value = model, device
            hardware = load_hardware(device)
            for place in panel.places():
                roof = attainable_flops(
                    place.point.intensity, hardware.flops("bf16"), hardware.bandwidth
                )
                assert 0 < place.point.flops_per_s <= roof * 1.0001


def test_a_bigger_batch_raises_the_intensity_and_a_longer_context_lowers_it(panel):
    panel.model.value, panel.device.value = "llama-3.1-8b", "h100-sxm"

    def decode(batch, context):
        panel.batch.box.value, panel.context.box.value = batch, context
        return panel.places()[0].achieved.intensity

    assert decode(64, 128) > 10 * decode(1, 128)
    assert decode(64, 8192) < decode(64, 128) / 2


@pytest.mark.timing
def test_a_knob_answers_within_200_ms(panel):
    assert seconds_a_move(panel.batch.box, range(1, 12)) < 0.2


def test_the_panel_says_that_it_is_simulated(panel):
    bundle = panel._repr_mimebundle_()
    assert "imulated" in bundle["text/plain"]
    assert "simulated" in bundle["text/html"]
    assert "simulated" in panel.figure.layout.title.text


def test_a_walk_without_steps_names_what_is_wrong():
    ceilings = Hardware("demo", "Demo", {"fp32": 1e13}, bandwidth=1e12, memory=1e9)
    with pytest.raises(ValueError, match=r"decode_walk\.steps = 0"):
        decode_walk(None, ceilings, [1], steps=0)
    with pytest.raises(ValueError, match=r"prefill_walk\.repeats = 0"):
        prefill_walk(None, ceilings, [1], repeats=0)


def test_the_walk_measures_the_steps_it_names():
    ceilings = Hardware("demo", "Demo", {"fp32": 1e13}, bandwidth=1e12, memory=1e9)
    model = load_model("tiny")
    decode = decode_walk(model, ceilings, [1, 4], context=16, steps=4)
    prefill = prefill_walk(model, ceilings, [8, 32], repeats=2)
    assert [m.tokens for m in decode + prefill] == [1, 4, 8, 32]
    assert decode[1].achieved.flops == pytest.approx(4 * decode[0].achieved.flops, rel=0.1)
    assert all(m.fastest_ms <= m.ms <= m.slowest_ms for m in decode + prefill)
    assert (
        "batch 4" in show_walk(decode + prefill, ceilings, "fp32")._repr_mimebundle_()["text/plain"]
    )

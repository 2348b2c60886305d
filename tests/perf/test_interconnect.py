"""Links have a source for what is stated and say what is assumed; a bad one is named."""

from __future__ import annotations

import pytest

from llmlab.perf.hardware import load_hardware
from llmlab.perf.interconnect import Interconnect, interconnect_catalog, load_interconnect


def test_every_link_states_its_source_and_what_is_assumed():
    for name in interconnect_catalog().entries:
        link = load_interconnect(name)
        assert link.source
        assert 0 < link.rate < link.bandwidth
        assert link.latency > 0


def test_rates_are_bytes_in_one_direction():
    assert load_interconnect("infiniband-ndr").bandwidth == 400e9 / 8
    assert load_interconnect("ethernet-25").bandwidth == 25e9 / 8
    for device, link in (("a100-80gb", "nvlink-3"), ("h100-sxm", "nvlink-4"), ("l4", "pcie-4")):
        assert load_hardware(device).interconnect == load_interconnect(link).bandwidth


def test_a_message_costs_its_bytes_and_its_latency():
    link = Interconnect("x", "x", 1e9, 0.5, 1e-3)
    assert link.seconds(500e6) == pytest.approx(1.001)
    assert link.seconds(500e6, messages=32) == pytest.approx(1.032)


def test_an_impossible_link_is_refused():
    bad = [("bandwidth", 0), ("bandwidth", float("inf")), ("efficiency", 1.1), ("latency", -1e-6)]
    for field, value in [*bad, ("latency", "1 us")]:
        with pytest.raises(ValueError, match=rf"Interconnect\.{field} = "):
            Interconnect(**{"name": "x", "title": "x", "bandwidth": 1e9, field: value})


def test_a_link_of_ones_own(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("interconnects:\n  wire: {gb_s: 2, efficiency: 1, latency_us: 5, source: me}\n")
    assert load_interconnect("wire", path).bandwidth == 2e9
    with pytest.raises(ValueError, match=r"mine\.yaml has wire"):
        load_interconnect("nvlink-4", path)
    path.write_text(
        "interconnects:\n  wire: {gb_s: two, efficiency: 1, latency_us: 5, source: me}\n"
    )
    with pytest.raises(ValueError, match="gb_s = 'two'"):
        load_interconnect("wire", path)
    path.write_text("hardware: {}\n")
    assert load_interconnect("nvlink", path).name == "nvlink-4"
    with pytest.raises(ValueError, match=r"absent\.yaml: cannot be read"):
        load_interconnect("nvlink", tmp_path / "absent.yaml")

"""Equal devices in two ways: the shape of the published figure, and a verdict that follows."""

from __future__ import annotations

import pytest

from llmlab.measure.limits import Limits
from llmlab.measure.metrics import summarize
from llmlab.sim.load import poisson_arrivals
from llmlab.sim.pools import simulate_disaggregated
from llmlab.viz.figures.attainment import (
    attainment_figure,
    attainment_head,
    attainment_rows,
    carried,
    served,
    update_attainment,
    verdict,
)
from llmlab.viz.panels.pools_panel import PoolsPanel
from tests.viz.speed import seconds_a_move

TIGHT_TPOT = Limits(ttft_ms=1000, tpot_ms=14)
TIGHT_TTFT = Limits(ttft_ms=400, tpot_ms=50)


@pytest.fixture(scope="module")
def panel() -> PoolsPanel:
    return PoolsPanel(rates=(30, 90, 150, 210))


def test_pools_carry_more_at_a_tight_tpot_and_replicas_at_a_tight_ttft(panel):
    """The shape of DistServe's figure, from both sides."""
    colocated, apart = panel.runs()
    assert carried(colocated, TIGHT_TPOT) == 90
    assert carried(apart, TIGHT_TPOT) == 210
    assert carried(colocated, TIGHT_TTFT) == 210
    assert carried(apart, TIGHT_TTFT) == 150


def test_why_decodes_apart_keep_their_pace_and_one_prefill_device_queues_sooner(panel):
    colocated, apart = panel.runs()
    paces = [[run.p90("tpot") for run in runs] for runs in (colocated, apart)]
    waits = [[run.p90("ttft") for run in runs] for runs in (colocated, apart)]
    assert paces[0][-1] > 1.8 * paces[0][0]
    assert paces[1][-1] < 1.15 * paces[1][0]
    assert all(a > c for c, a in zip(*waits, strict=True))
    assert waits[1][-1] > 2 * waits[0][-1]


def test_where_the_colocated_baseline_meets_both_limits_it_is_not_warranted(panel):
    runs, names = panel.runs(), panel.names
    said = verdict(*runs, names, TIGHT_TPOT, 30)
    assert "both meet" in said
    assert "not warranted" in said
    assert "earns its link" in verdict(*runs, names, TIGHT_TPOT, 150)
    assert "would do harm" in verdict(*runs, names, TIGHT_TTFT, 210)
    assert "neither meets" in verdict(*runs, names, Limits(ttft_ms=50, tpot_ms=5), 210)


def test_attainment_is_the_goodput_share_of_the_metrics():
    load = poisson_arrivals(5.0, 30, [("a", 2048, 16), ("b", 100, 1)], seed=3)
    trace = simulate_disaggregated(load, "llama-3.1-8b", "a100-80gb")
    for limits in (TIGHT_TPOT, Limits(ttft_ms=200, tpot_ms=10.2)):
        whole = summarize(trace, limits=limits).all
        assert served(trace, 150).attained(limits) == whole.good / whole.judged
    assert 0 < whole.good < whole.judged


def test_the_figure_and_the_table_hold_the_runs_the_limits_and_the_rate(panel):
    colocated, apart = panel.runs()
    figure = attainment_figure()
    update_attainment(figure, colocated, apart, panel.names, TIGHT_TPOT, 90)
    assert [line.name for line in figure.data] == ["2x colocated", "1P1D"] * 3
    assert list(figure.data[0].y) == [100 * run.attained(TIGHT_TPOT) for run in colocated]
    assert list(figure.data[5].y) == [run.p90("tpot") for run in apart]
    assert [s.y0 for s in figure.layout.shapes[:3]] == [90, 1000, 14]
    assert [s.x0 for s in figure.layout.shapes[3:]] == [90] * 3
    assert "simulated" in figure.layout.title.text
    rows = attainment_rows(colocated, apart, TIGHT_TPOT)
    assert len(rows) == 4
    assert {len(row) for row in rows} == {len(attainment_head(panel.names))}
    assert rows[0][1] == f"{100 * colocated[0].attained(TIGHT_TPOT):.0f} %"


def test_the_live_figure_shows_all_of_both_lines_but_no_endless_queue(panel):
    fresh = PoolsPanel(rates=(30, 150))
    highest = max(run.p90("tpot") for runs in fresh.runs() for run in runs)
    assert fresh.figure.layout.yaxis3.range[1] == pytest.approx(1.08 * highest)
    fresh.ttft.box.value = 50
    assert fresh.figure.layout.yaxis2.range[1] == pytest.approx(1.08 * 200)


def test_a_slow_link_shows_and_a_fast_one_hides(panel):
    panel.link.value = "ethernet-10"
    slow = panel.runs()[1][0]
    panel.link.value = "nvlink-3"
    fast = panel.runs()[1][0]
    # 2,048 tokens of 131,072 bytes at 0.875 GB/s take 307 ms, a prefill about half of that.
    assert min(slow.visible) > 100
    assert max(fast.visible) < 1
    assert slow.p90("ttft") > fast.p90("ttft") + 100


@pytest.mark.timing
def test_limits_and_rate_answer_within_200_ms(panel):
    assert seconds_a_move(panel.tpot.box, (13, 15, 16)) < 0.2
    assert seconds_a_move(panel.ttft.box, (500, 450, 400)) < 0.2
    assert seconds_a_move(panel.rate.box, (60, 70, 75)) < 0.2


def test_a_known_split_is_not_run_again(panel):
    before = panel.runs()
    panel.rate.box.value = 90
    assert panel.runs()[0] is before[0]


def test_a_tuned_baseline_may_leave_nothing_to_gain(panel):
    """Small enough chunks ride along with decodes below the knee, at least in the cost model."""
    panel.budget.value = 128
    tuned = panel.runs()[0]
    panel.budget.value = 2048
    untuned = panel.runs()[0]
    assert carried(untuned, TIGHT_TPOT) == 90
    assert carried(tuned, TIGHT_TPOT) == 210


def test_a_split_compares_as_many_devices_in_words_and_without_a_widget(panel):
    other = PoolsPanel(rates=(30,))
    other.split.value = "2P1D"
    assert other.names == ("3x colocated", "2P1D")
    text = other._repr_mimebundle_()["text/plain"]
    assert text.startswith("Simulated. At ")
    assert "3x colocated: within both" in text
    assert "30" in text.splitlines()[2]

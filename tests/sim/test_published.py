"""Predictions beside published measurements: what is compared, and how well it comes out."""

from __future__ import annotations

import numpy as np
import pytest

from llmlab.perf.cost import CostModel, step_shape
from llmlab.perf.hardware import Hardware
from llmlab.perf.models import load_model_config
from llmlab.sim.fit import constants_at, fit, fit_steps, groups, least_squares, rounded
from llmlab.sim.load import ClosedLoop
from llmlab.sim.published import (
    compare,
    load_rows,
    median_abs_error,
    medians,
    predict,
    published_report,
    relative_error,
    steady_state,
)
from llmlab.sim.simulate import simulate
from llmlab.sim.step_time import (
    Constants,
    StepTime,
    constants_catalog,
    constants_from_entry,
)

ROWS = {row.key: row for row in load_rows()}


@pytest.fixture(scope="module")
def report():
    return published_report()


def test_every_row_has_a_source_a_setting_and_what_was_assumed():
    assert len(ROWS) == 34
    for row in ROWS.values():
        assert row.setting["source"]
        assert row.setting["setting"]
        assert row.kind == "reference" or row.setting["assumed"]


def test_a_figure_that_contradicts_its_own_row_is_left_out_with_the_reason():
    row = ROWS["L4-05B/1"]
    assert not row.counts("output_rate")
    assert "190" in row.left_out["output_rate"]
    assert row.counts("tpot_ms")


def test_constants_belong_to_a_device_and_engine_never_to_a_row():
    entries = constants_catalog().entries
    for name, rows in groups(list(ROWS.values())).items():
        assert set(entries[name]["leave_one_out"]) == {row.key for row in rows}
        assert entries[name]["rows"] == len(rows)


def test_errors_and_medians_by_hand():
    assert relative_error(110.0, 100.0) == pytest.approx(0.1)
    assert median_abs_error([-0.3, 0.1, 0.2]) == pytest.approx(0.2)
    assert median_abs_error([]) is None


def test_steady_state_leaves_out_the_first_and_the_last_round():
    trace = simulate(ClosedLoop(3, 9, 100, 10), "llama-3.1-8b", "h100-sxm")
    found = steady_state(trace, 3)
    middle = list(trace.requests.values())[3:6]
    cycle = [(record.events[-1].t - record.t_send) / 1e9 for record in middle]
    assert found["output_rate"] == pytest.approx(3 * 10 / np.mean(cycle))


@pytest.mark.slow
def test_measured_rows_are_met_within_the_targets(report):
    errors = report["median_abs_error"]
    assert errors["tpot"] <= 0.10
    assert errors["output_rate"] <= 0.15
    unseen = report["median_abs_error_leave_one_out"]
    assert unseen["tpot"] <= 0.10
    assert unseen["output_rate"] <= 0.15


@pytest.mark.slow
def test_the_full_pool_of_the_70b_table_is_reproduced(report):
    full = report["kv_exhaustion"]
    assert full["users"] == [100, 150, 200, 250]
    assert full["tpot_flat_within_10_percent"]
    assert full["ttft_of_the_measured_order"]
    assert full["ttft_ms"] == sorted(full["ttft_ms"])


@pytest.mark.slow
def test_estimates_of_other_tools_are_apart_and_within_their_own_target(report):
    assert {row["kind"] for row in report["rows"]} == {"measured"}
    assert {row["kind"] for row in report["estimates"]["rows"]} == {"estimate"}
    assert report["estimates"]["median_abs_error"]["tpot"] <= 0.15


@pytest.mark.slow
def test_the_mixture_of_experts_grows_more_than_the_dense_model(report):
    growth = {row["set"]: row for row in report["mixture_of_experts"]}
    for device in ("H100", "A100"):
        dense, moe = growth[f"AIC-8B-{device}"], growth[f"AIC-MoE-{device}"]
        assert moe["predicted"] > 1.5 * dense["predicted"]
        assert moe["predicted"] == pytest.approx(moe["published"], rel=0.25)
    assert growth["SEED"]["published"] == pytest.approx(7.55, abs=0.01)


def test_a_row_is_predicted_without_having_been_seen():
    compared = compare(ROWS["L4-05B/16"])
    assert compared.fitted != compared.left_out
    assert abs(compared.error("tpot_ms", leave_one_out=True)) < 0.10
    assert medians([compared])["tpot"] == abs(compared.error("tpot_ms"))


def test_stored_constants_are_those_that_the_fit_finds():
    (name, rows) = next(
        g for g in groups(list(ROWS.values())).items() if g[0] == "h100-sxm/vllm-0.21"
    )
    assert rounded(fit(rows)) == constants_catalog().entries[name]["values"]


@pytest.mark.slow
def test_a_fit_finds_the_constants_that_made_the_figures():
    rows = [ROWS[f"L4-05B/{users}"] for users in (1, 4)]
    point = np.array([0.3, -0.1, 0.5, 0.4, 0.0, 0.6, 0.2])
    truth = constants_at(point, Constants())
    made = []
    for row in rows:
        figures = predict(row, truth)
        made.append(type(row)(row.set_id, row.kind, row.users, row.setting, figures))
    found = fit(made)
    for row in made:
        again = predict(row, found)
        assert again["tpot_ms"] == pytest.approx(row.measured["tpot_ms"], rel=0.03)
        assert again["output_rate"] == pytest.approx(row.measured["output_rate"], rel=0.03)


def test_least_squares_finds_a_known_minimum():
    found = least_squares(
        lambda p: [p[0] - 3, p[1] - 2 + 0.1 * p[0] ** 2], np.array([0.0, 0.0]), 30
    )
    assert found == pytest.approx([3, 1.1], abs=0.02)


BOX = Hardware("box", "box", {"fp32": 2e11, "fp16": 4e11}, 5e10, 1.6e10)


def test_steps_of_known_constants_are_fitted_through_hiccups():
    cost = CostModel(load_model_config("smollm2-135m"))
    values = {
        "compute_efficiency": 0.7,
        "bandwidth_efficiency": 0.8,
        "step_overhead": 4e-3,
        "request_overhead": 5e-4,
    }
    clock = StepTime(cost, BOX, constants_from_entry(values, "test"))
    shapes = [step_shape([(1, 50 * w, True)] * w) for w in (1, 2, 4, 8, 16, 32, 64)]
    shapes += [step_shape([(n, 0, True)]) for n in (16, 64, 256, 512)]
    steps = [(shape, clock.seconds(shape)) for shape in shapes]
    steps[3] = (steps[3][0], 5 * steps[3][1])  # one that the system interrupted
    constants, error = fit_steps(steps, cost, BOX)
    assert error < 0.05
    assert constants.preprocess == constants.network == 0
    with pytest.raises(ValueError, match="at least 6"):
        fit_steps(steps[:3], cost, BOX)

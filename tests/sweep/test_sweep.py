"""A sweep: a cell's figures are those of its simulation, and a stopped sweep goes on."""

from __future__ import annotations

import csv
import json

import pytest

from llmlab.executor import Differs, Serial
from llmlab.measure.metrics import summarize
from llmlab.measure.workload import load_workload
from llmlab.sim.simulate import simulate
from llmlab.sweep import FIGURES, Best, cell_function, make_setting, read_grid
from llmlab.sweep.cell import SIM_DEFAULTS
from llmlab.sweep.session import Outcome, open_results, run_cells, write_csv

WORKLOAD = """
name: mine
classes:
  - {name: chat, share: 1, prompt_tokens: 30, output_tokens: 6, limits: {ttft_ms: 40}}
  - {name: report, share: 1, prompt_tokens: 400, output_tokens: 3}
arrivals: {kind: poisson, request_rate: 20}
stop: {num_prompts: 8}
"""


@pytest.fixture
def load(tmp_path):
    path = tmp_path / "load.yaml"
    path.write_text(WORKLOAD)
    return str(path)


def asked(load, *, options=None, **axes):
    grid = read_grid({"workload": load, **axes}, SIM_DEFAULTS)
    return grid, make_setting(grid, **(options or {}))


def test_a_cell_has_the_figures_of_its_simulation(load):
    grid, setting = asked(load, rate="40", max_num_seqs="4", max_num_batched_tokens="64", seed="3")
    found = cell_function(setting)(grid[0])
    workload = load_workload(load).with_(arrivals={"kind": "poisson", "request_rate": 40}, seed=3)
    knobs = {"max_num_seqs": 4, "max_num_batched_tokens": 64}
    trace = simulate(workload, "llama-3.1-8b", "h100-sxm", **knobs)
    summary = summarize(trace, limits=workload.limits)
    assert found["ttft_p95_ms"] == summary.all["ttft"].p95
    assert found["itl_p99_ms"] == summary.all["itl"].p99
    assert found["output_tok_s"] == summary.all.rates.output_tok_s
    assert found["goodput_req_s"] == summary.all.rates.goodput_req_s
    assert found["attainment"] == summary.all.attainment
    assert found["classes"]["chat"]["ttft_p50_ms"] == summary["chat"]["ttft"].p50
    assert found["submitted"] == 8
    assert set(FIGURES) <= set(found)


def test_mix_users_and_requests_change_the_workload(load):
    grid, setting = asked(load, mix="3:1", users="2", options={"num_prompts": 12})
    workload = setting.load(grid[0])
    assert [r.class_name for r in workload.requests()].count("chat") == 9
    assert workload.closed_loop
    found = cell_function(setting)(grid[0])
    assert found["submitted"] == 12


def test_limits_given_go_before_the_workload_s(load):
    grid, setting = asked(load, options={"goodput": ("ttft:100000",)})
    assert cell_function(setting)(grid[0])["attainment"] == 1


@pytest.mark.parametrize(
    ("axes", "options", "said"),
    [
        ({"hardware": "h100-sx"}, {}, "did you mean h100-sxm"),
        ({"model": "lama-3.1-8b"}, {}, "did you mean llama-3.1-8b"),
        ({"policy": "magic"}, {}, "one of chunked"),
        ({"mix": "1:1:1"}, {}, r"3 shares for 2 classes \(chat, report\)"),
        ({"workload": "none"}, {}, "no such workload"),
        ({}, {"goodput": ("tttf:1",)}, "--goodput"),
        ({}, {"num_prompts": 0}, "num_prompts"),
        ({}, {"gpu_memory_utilization": 0}, "gpu_memory_utilization"),
        ({"hardware": "h100-sxm"}, {"engine": True}, "runs on this machine"),
    ],
)
def test_a_name_that_does_not_exist_is_found_before_anything_runs(load, axes, options, said):
    with pytest.raises(ValueError, match=said):
        asked(
            **{"load": load, **({"load": axes.pop("workload")} if "workload" in axes else {})},
            **axes,
            options=options,
        )


class Stopped(Exception):
    pass


def test_a_stopped_sweep_goes_on_and_gives_what_an_undisturbed_one_gives(load, tmp_path):
    grid, setting = asked(load, rate="10,20,40", max_num_seqs="1,8")

    def lines(path):
        seen = [json.loads(line) for line in path.open()][1:]
        assert len({line["cell"] for line in seen}) == len(seen)
        return {line["cell"]: (line["values"], line["figures"]) for line in seen}

    whole, torn = tmp_path / "whole.jsonl", tmp_path / "torn.jsonl"
    with open_results(whole, grid, setting) as results:
        run_cells(results, grid, setting, Serial())

    def stop(done):
        if done.cell == 2:
            raise Stopped

    with open_results(torn, grid, setting) as results, pytest.raises(Stopped):
        run_cells(results, grid, setting, Serial(), stop)
    torn.write_bytes(torn.read_bytes()[:-20])  # and the last line is cut off
    told = []
    with open_results(torn, grid, setting) as results:
        assert results.repaired
        run_cells(results, grid, setting, Serial(), lambda done: told.append(done.cell))
    assert told == [2, 3, 4, 5]
    assert lines(torn) == lines(whole)


def test_another_grid_or_another_workload_of_the_same_name_is_refused(load, tmp_path):
    path = tmp_path / "run.jsonl"
    open_results(path, *asked(load, rate="10,20")).close()
    with pytest.raises(Differs, match=r"axes\.rate"):
        open_results(path, *asked(load, rate="10,30"))
    with open(load, "a") as file:
        file.write("seed: 7\n")
    with pytest.raises(Differs, match="workloads"):
        open_results(path, *asked(load, rate="10,20"))


def test_a_model_that_does_not_fit_fails_in_its_cell_alone(load, tmp_path):
    grid, setting = asked(load, model="llama-3.1-8b,llama-3.1-70b")
    path = tmp_path / "run.jsonl"
    with open_results(path, grid, setting) as results:
        run_cells(results, grid, setting, Serial())
        outcome = Outcome(Best("output_tok_s")).read(results)
        write_csv(results, grid, tmp_path / "run.csv")
    assert (outcome.done, outcome.failed, outcome.best.ranked) == (2, 1, 1)
    (reason,) = outcome.reasons
    assert "bytes are missing" in reason
    with (tmp_path / "run.csv").open(newline="") as text:
        good, bad = csv.DictReader(text)
    assert float(good["output_tok_s"]) > 0
    assert good["error"] == ""
    assert (bad["model"], bad["output_tok_s"]) == ("llama-3.1-70b", "")
    assert "bytes are missing" in bad["error"]


@pytest.mark.parametrize(
    "line",
    [
        '{"cell":1,"ok":true}',
        '{"cell":1,"ok":true,"values":{},"figures":[]}',
        '{"cell":1,"ok":true,"values":{},"figures":{"output_tok_s":"fast"}}',
        '{"cell":1,"ok":false,"values":{}}',
    ],
)
def test_a_line_that_no_sweep_writes_is_named_by_its_cell(load, tmp_path, line):
    grid, setting = asked(load, rate="10,20")
    path = tmp_path / "run.jsonl"
    open_results(path, grid, setting).close()
    with path.open("a") as file:
        file.write(line + "\n")
    with (
        open_results(path, grid, setting) as results,
        pytest.raises(ValueError, match=r"run\.jsonl: cell 1 is not as a sweep writes it"),
    ):
        Outcome(Best("output_tok_s")).read(results)


def figures(value, share=1.0):
    return {"ttft_p95_ms": value, "output_tok_s": value, "attainment": share}


@pytest.mark.parametrize(("figure", "order"), [("output_tok_s", [2, 3]), ("ttft_p95_ms", [1, 0])])
def test_the_best_are_the_largest_rates_and_the_smallest_times(figure, order):
    best = Best(figure, top=2)
    for number, value in enumerate([2.0, 1.0, 9.0, 5.0]):
        best.add(number, {}, figures(value))
    best.add(4, {}, figures(None))
    assert [number for number, _, _ in best.cells()] == order
    assert best.ranked == 4


def test_only_cells_that_keep_their_limits_are_ranked():
    best = Best("output_tok_s", min_attainment=0.9)
    for number, share in enumerate([0.89, 0.9, None]):
        best.add(number, {}, figures(10.0 - number, share))
    assert [number for number, _, _ in best.cells()] == [1]


def test_of_equal_cells_the_earlier_is_the_better():
    best = Best("output_tok_s", top=2)
    for number in (3, 1, 2):
        best.add(number, {}, figures(5.0))
    assert [number for number, _, _ in best.cells()] == [1, 2]

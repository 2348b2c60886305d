"""The map of a sweep: the best of each square, as a figure and as a table."""

from __future__ import annotations

import pytest

from llmlab.viz.figures.sweep_map import SweepMap

AXES = {"model": ("m",), "rate": (1.0, 2.0), "seqs": (8, 16, 32), "seed": (0, 1)}


def line(rate, seqs, seed, value, ok=True, share=1.0):
    values = {"model": "m", "rate": rate, "seqs": seqs, "seed": seed}
    figures = {"ttft_p95_ms": value, "goodput_req_s": value, "attainment": share}
    return {"ok": ok, "values": values, "figures": figures}


def drawn(figure, **more):
    seen = SweepMap(AXES, ["rate", "seqs", "seed"], figure, False, **more)
    for i, (rate, seqs) in enumerate([(1.0, 8), (1.0, 16), (2.0, 32)]):
        seen.add(line(rate, seqs, 0, 10.0 + i))
        seen.add(line(rate, seqs, 1, 20.0 + i, share=0.5))
    seen.add(line(2.0, 8, 0, 1.0, ok=False))
    return seen


def test_a_square_holds_its_best_cell():
    assert drawn("goodput_req_s").rows() == [["1", "20", "21", "–"], ["2", "–", "–", "22"]]
    assert drawn("ttft_p95_ms").rows() == [["1", "10", "11", "–"], ["2", "–", "–", "12"]]


def test_squares_hold_only_cells_that_keep_their_limits():
    assert drawn("goodput_req_s", min_attainment=0.9).rows()[0] == ["1", "10", "11", "–"]


def test_the_figure_has_the_numbers_of_the_table():
    (heat,) = drawn("goodput_req_s").draw().data
    assert [list(row) for row in heat.z] == [[20.0, 21.0, None], [None, None, 22.0]]
    assert "seed 1" in heat.customdata[0][0]


def test_the_page_says_that_it_is_simulated_and_loads_nothing(tmp_path):
    path = tmp_path / "map.html"
    drawn("goodput_req_s").write(path)
    text = path.read_text()
    assert "Simulated: 7 cells, 1 failed. model m" in text
    assert "<td>22</td>" in text
    assert 'src="' not in text.split("<script>")[0]


def test_an_axis_that_no_page_could_show_is_refused():
    with pytest.raises(ValueError, match="rate has 41 values"):
        SweepMap({"rate": tuple(range(41))}, ["rate"], "goodput_req_s", False)

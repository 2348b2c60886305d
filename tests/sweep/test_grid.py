"""A grid from text: what a learner types becomes cells, and what cannot be is named."""

from __future__ import annotations

from itertools import product

import pytest

from llmlab.sweep import AXES, read_grid
from llmlab.sweep.grid import read_grid_file


def test_lists_and_ranges():
    table = [
        ("512,1024", (512, 1024)),
        ("2:10:2", (2, 4, 6, 8, 10)),
        ("2:9:2", (2, 4, 6, 8)),
        ("256:2048:x2", (256, 512, 1024, 2048)),
        ("1,4:16:x2,100", (1, 4, 8, 16, 100)),
        ("7", (7,)),
        ([1, "2:3:1"], (1, 2, 3)),
    ]
    for text, values in table:
        assert read_grid({"max_num_seqs": text}).axes["max_num_seqs"] == values


def test_a_rate_may_be_broken_or_endless():
    rates = read_grid({"rate": "0.5:2:0.5,inf"}).axes["rate"]
    assert rates == (0.5, 1.0, 1.5, 2.0, "inf")
    assert read_grid({"rate": "0.1:0.3:0.1"}).axes["rate"] == (0.1, 0.2, 0.3)


def test_cells_are_every_value_with_every_other_the_last_axis_fastest():
    grid = read_grid({"rate": "1,2", "max_num_seqs": "8,16,32"}, {"policy": "chunked"})
    pairs = [(cell["rate"], cell["max_num_seqs"]) for cell in grid]
    assert pairs == list(product((1.0, 2.0), (8, 16, 32)))
    assert len(grid) == 6
    assert {cell["policy"] for cell in grid} == {"chunked"}
    assert all(cell["users"] is None for cell in grid)
    assert grid.varying == ["rate", "max_num_seqs"]
    with pytest.raises(IndexError):
        grid[6]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_num_sequences": 1}, "did you mean max_num_seqs"),
        ({"max_num_seqs": "0"}, "a whole number >= 1"),
        ({"max_num_seqs": "1.5"}, "a whole number >= 1"),
        ({"max_num_seqs": "inf"}, "a whole number >= 1"),
        ({"max_num_seqs": "1:inf:1"}, "a whole number >= 1"),
        ({"max_num_seqs": "8,8"}, "8 is there twice"),
        ({"max_num_seqs": "8:4:1"}, "growing"),
        ({"max_num_seqs": "8:16:x1"}, "growing"),
        ({"max_num_seqs": "8:16"}, "START:END:STEP"),
        ({"max_num_seqs": "1:2:0.5"}, "no whole number"),
        ({"max_num_seqs": "1:999999999:1"}, "more than"),
        ({"max_num_seqs": ""}, "whole number"),
        ({"rate": "0"}, "requests/s > 0"),
        ({"rate": "nan"}, "requests/s > 0"),
        ({"rate": "1:inf:1"}, "growing"),
        ({"mix": "3:none"}, "shares > 0"),
        ({"mix": "3:0"}, "shares > 0"),
        ({"rate": 1, "users": 1}, "one of them"),
        ({"model": " "}, "a name"),
        ({"seed": "1:50000:1", "max_num_seqs": "1:50:1"}, "50 = 2,500,000 cells"),
    ],
)
def test_what_cannot_be_is_named(given, said):
    with pytest.raises(ValueError, match=said):
        read_grid(given)


def test_a_file_says_the_same_as_the_options(tmp_path):
    """YAML would read the mix 3:1 as 181 and the range 1:8:1 as 4081."""
    path = tmp_path / "grid.yaml"
    path.write_text("mix: 3:1\nrate: 1:8:1\nmax_num_seqs: [8, 16]\npolicy: chunked\n")
    told = {"mix": "3:1", "rate": "1:8:1", "max_num_seqs": "8,16", "policy": "chunked"}
    assert read_grid(read_grid_file(path)) == read_grid(told)


@pytest.mark.parametrize(
    ("text", "said"), [("- a", "axis: values"), ("rates: 1", "did you mean rate"), ("a: [", "YAML")]
)
def test_a_file_that_is_no_grid_is_named(tmp_path, text, said):
    path = tmp_path / "grid.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=said) as wrong:
        read_grid_file(path)
    assert "grid.yaml" in str(wrong.value)
    with pytest.raises(ValueError, match="cannot be read"):
        read_grid_file(tmp_path / "none.yaml")


def test_every_axis_has_a_kind():
    assert set(AXES.values()) == {"name", "mix", "count", "whole", "rate"}

"""The bench of sweeps: its 10,000 cells, its slice, and how it reads memory."""

from __future__ import annotations

import json

from llmlab.bench.sweep import spread, the_grid
from llmlab.bench.sweep_memory import Memory


def test_the_grid_has_ten_thousand_cells_and_a_slice_meets_every_value():
    grid, setting = the_grid()
    assert len(grid) == 10_000
    assert len(set(spread(grid, 10_000))) == 10_000
    chosen = [grid[i] for i in spread(grid, 48)]
    for name in grid.varying:
        assert {cell[name] for cell in chosen} == set(grid.axes[name])
    assert len(setting.load(grid[0]).requests()) == 200


def test_a_piece_is_read_at_its_ends_without_its_start(tmp_path):
    path = tmp_path / "run.memory"
    with path.open("w") as file:
        for i in range(30):
            sample = {"pid": 1, "who": "two", "s": 2.0 * i, "cells": 10 * i}
            sample |= {"parent": (50 + i) * 1_000_000, "workers": 200_000_000 if i > 4 else 0}
            file.write(json.dumps(sample) + "\n")
    (piece,) = Memory.pieces(path)
    assert piece.cells == 290
    assert piece.parent_mb == (55.5, 78.5)  # medians of two samples each, from cell 50 on
    assert piece.workers_mb == (200.0, 200.0)
    assert piece.parent_max_mb == 79.0

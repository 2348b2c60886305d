"""The programs of a decode cover the context once, through the table, whatever the knobs say."""

from __future__ import annotations

from itertools import product

import pytest

from llmlab.viz.figures.achieved_rate import achieved_rate
from llmlab.viz.figures.grid_walk import walk_figure, walk_rows, walk_sentence
from llmlab.viz.grid_walk import grid_walk
from llmlab.viz.panels.grid_panel import GridPanel
from tests.viz.speed import seconds_a_move

CONTEXTS, PAGES, SPLITS, TILES = (1, 7, 8, 23, 64), (1, 3, 4, 16), (1, 2, 4), (1, 8)


def test_each_position_is_read_by_exactly_one_program():
    for context, page, splits, tile in product(CONTEXTS, PAGES, SPLITS, TILES):
        walk = grid_walk((9, context, 5), page, 1, splits, tile=tile)
        positions = [p for program in walk.programs for p in range(program.begin, program.end)]
        assert positions == list(range(context)), walk
        for program in walk.programs:
            read = {p // page for p in range(program.begin, program.end)}
            assert set(program.entries) == read, walk
            lanes = program.tiles * tile
            assert program.masked == lanes - (program.end - program.begin), walk
            assert 0 <= program.masked < tile, walk


def test_the_stretches_are_the_positions_cut_at_blocks_and_splits():
    walk = grid_walk((9, 23, 5), 4, 1, 2)
    assert [stretch[2:] for stretch in walk.stretches()] == [
        *((0, 4), (4, 8), (8, 12), (12, 16)),
        *((16, 20), (20, 23)),
    ]
    assert [stretch.split for stretch in walk.stretches()] == [0, 0, 0, 0, 1, 1]


def test_no_block_has_two_owners_and_some_are_free():
    for page in (1, 4, 16):
        walk = grid_walk((9, 23, 30, 17), page)
        taken = [block for table in walk.tables for block in table]
        assert len(set(taken)) == len(taken) < walk.num_blocks
        assert [len(t) for t in walk.tables] == [-(-c // page) for c in walk.contexts]


def test_bad_sizes_are_refused():
    with pytest.raises(ValueError, match="page = 0"):
        grid_walk((4,), 0)
    with pytest.raises(ValueError, match="request = 2"):
        grid_walk((4, 5), 4, 2)
    with pytest.raises(ValueError, match="contexts"):
        grid_walk((4, 0), 4)
    with pytest.raises(ValueError, match="8 at most"):
        grid_walk((4,) * 9, 4)


def test_the_figure_draws_every_stretch_and_every_block():
    walk = grid_walk((9, 23, 30, 17), 4, 1, 3)
    read, masked, tile, block, pool, entry = walk_figure(walk).data
    assert sum(read.x) == 23
    assert list(masked.x) == [1]
    assert list(block.text) == [f"<b>{b}</b>" for b in walk.table]
    assert len(tile.x) == 0  # a split is one tile here
    assert len(pool.x) == len(entry.text) == walk.num_blocks
    numbers = [t for t in entry.text if t.startswith("<b>")]
    assert sorted(numbers) == [f"<b>{i}</b>" for i in range(6)]


def test_the_panel_follows_its_knobs_and_says_the_same_in_words():
    panel = GridPanel()
    assert "16 programs" in walk_sentence(panel.walk())
    panel.splits.box.value = 3
    assert "48 programs" in panel.status.value
    assert len(walk_rows(panel.walk())) == 3
    panel.request.box.value = 2
    assert panel.context.value == 30
    panel.context.box.value = 5
    panel.request.box.value = 1
    assert panel.context.value == 23
    assert panel.walk().contexts == (9, 23, 5, 17)
    assert "nothing to do: 3" in walk_sentence(grid_walk((3,), 4, 0, 4))
    assert "3 programs" in panel.figure.layout.title.text
    bundle = panel._repr_mimebundle_()
    assert "programs" in bundle["text/plain"]
    assert "<table>" in bundle["text/html"]


@pytest.mark.timing
def test_a_knob_answers_within_200_ms():
    assert seconds_a_move(GridPanel().context.box, range(40, 51)) < 0.2


def test_the_achieved_rate_stands_under_the_copy():
    bars = [("yours", "batch 1", 2.0), ("torch", "batch 1", 1.0), ("yours", "batch 4", 3.0)]
    figure = achieved_rate(bars, 4.0, "measured")
    assert [b.name for b in figure.data] == ["yours", "torch"]
    assert list(figure.data[0].text) == ["50 %", "75 %"]
    assert list(figure.data[1].y) == [1.0, None]
    assert figure.layout.shapes[0].y0 == 4.0

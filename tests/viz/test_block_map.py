"""The block map: what it shows is what the block tables say; the panel moves a real scheduler."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmlab.viz.figures.block_map import (
    BLOCK_HEAD,
    CACHED,
    FREE,
    HELD,
    SHARED,
    block_map,
    block_rows,
    describe,
    show_blocks,
    snapshot,
    text_map,
)
from llmlab.viz.panels.block_panel import BlockPanel


def signs(panel: BlockPanel) -> list[str]:
    return text_map(snapshot(panel.scheduler)).split()


def test_blocks_fill_as_tokens_are_computed():
    panel = BlockPanel(num_blocks=8)
    panel.add(6, 4)
    assert snapshot(panel.scheduler).held == 0  # a waiting request holds nothing
    assert panel.step() == "Step 1 computed A 6."
    shot = snapshot(panel.scheduler)
    assert [(b.state, b.tokens) for b in shot.blocks[:3]] == [(HELD, 4), (HELD, 2), (FREE, 0)]
    panel.step()
    assert snapshot(panel.scheduler).blocks[1].tokens == 3
    assert shot.blocks[1].tokens == 2  # a snapshot is a copy


def test_a_finished_request_frees_its_blocks():
    panel = BlockPanel(num_blocks=8)
    panel.add(6, 2)
    assert "A finished" in panel.step(10)
    shot = snapshot(panel.scheduler)
    assert shot.held == 0
    assert shot.requests == ()


def test_an_aborted_request_frees_its_blocks_at_once():
    panel = BlockPanel(num_blocks=8)
    panel.add(9, 8)
    panel.step()
    assert panel.abort("A") == "A aborted: 3 blocks came free."
    assert panel.scheduler.num_blocks_used == 0
    with pytest.raises(ValueError, match="'A'"):
        panel.abort("A")


def test_equal_beginnings_share_blocks_only_with_the_prefix_cache_on():
    held = {}
    for cache in (False, True):
        panel = BlockPanel(num_blocks=24, prefix_caching=cache)
        panel.add(14, 6, 8)
        panel.step()
        panel.add(14, 6, 8)
        panel.step()
        shot = snapshot(panel.scheduler)
        held[cache] = shot.held
        assert shot.count(SHARED) == (2 if cache else 0)
        assert ("A+B" in signs(panel)) is cache
    assert held[False] - held[True] == 2


def test_free_blocks_that_can_be_found_are_marked_until_they_are_taken():
    panel = BlockPanel(num_blocks=8, prefix_caching=True)
    panel.add(14, 2)
    panel.step(10)
    shot = snapshot(panel.scheduler)
    assert shot.count(CACHED) == 3
    assert signs(panel).count("◇") == 3
    assert all(b.tokens == 4 for b in shot.blocks if b.state == CACHED)
    panel.add(28, 2)  # other tokens, and nearly the whole pool
    panel.step(2)
    assert snapshot(panel.scheduler).count(CACHED) < 3


def test_a_pool_too_small_preempts_and_counts_the_work_done_twice():
    tokens = {}
    for pool in (8, 24):
        panel = BlockPanel(num_blocks=pool)
        panel.add(10, 12)
        panel.add(10, 12)
        said = []
        while panel.scheduler.has_work:
            said.append(panel.step())
        tokens[pool] = panel.tokens_computed
        assert any("B preempted" in s for s in said) is (pool == 8)
    assert tokens[24] == 2 * (10 + 11)
    assert tokens[8] > tokens[24]


class Undrawn(BlockPanel):
    """Without its figure: it is what takes time."""

    def _show(self, said):
        return said


@settings(max_examples=25, deadline=None)
@given(
    cache=st.booleans(),
    pool=st.integers(8, 24),
    moves=st.lists(st.sampled_from(["add", "step", "step", "step", "abort"]), max_size=25),
)
def test_the_map_agrees_with_the_pool_after_every_move(cache, pool, moves):
    panel = Undrawn(pool, 4, cache)
    for move in moves:
        if move == "add" and panel._added < 20:
            panel.add(14, 6, 8)
        elif move == "step":
            panel.step()
        elif move == "abort" and panel.scheduler.has_work:
            panel.abort(snapshot(panel.scheduler).requests[0].request_id)
        shot = snapshot(panel.scheduler)
        assert shot.held == panel.scheduler.num_blocks_used
        assert len(shot.blocks) == shot.held + shot.count(FREE, CACHED)
        for r in shot.requests:
            if r.table:
                last = shot.blocks[r.table[-1]]
                assert r.request_id in last.holders
                assert all(shot.blocks[b].tokens == shot.block_size for b in r.table[:-2])
        panel.scheduler.check_integrity()


def test_the_figure_says_what_the_snapshot_says():
    panel = BlockPanel(num_blocks=15, prefix_caching=True)
    panel.add(14, 6, 8)
    panel.step()
    panel.add(14, 6, 8)
    panel.step()
    shot = snapshot(panel.scheduler)
    for figure in (block_map(shot), panel.figure):
        cells, written, drawn = figure.data
        assert len(cells.x) == len(drawn.text) == 15
        assert list(drawn.text).count("<b>A+B</b>") == 2
        strips = sum(len(b.holders) or b.findable for b in shot.blocks)
        assert len(written.x) == strips
        assert list(cells.customdata) == [describe(b, shot) for b in shot.blocks]
        assert max(written.x) == pytest.approx(0.9)
    assert describe(shot.blocks[0], shot) == (
        "block 0: A, B · 4 of 4 slots written, can be found by content"
    )
    rows = block_rows(shot)
    assert [row[0] for row in rows] == ["A", "B"]
    assert all(len(row) == len(BLOCK_HEAD) for row in rows)
    assert rows[1][6] == "8"


def test_the_panel_s_buttons_and_menu_follow_the_requests():
    panel = BlockPanel()
    assert panel.halt.disabled
    panel._fail("x")
    panel.add(5, 5)
    panel.add(5, 5)
    assert panel.who.options == ("A", "B")
    panel.who.value = "B"
    panel.step()
    assert panel.who.value == "B"
    panel.halt.click()
    assert panel.who.options == ("A",)
    assert "B aborted" in panel.status.value
    panel.prefix.value = True  # starts afresh
    assert panel.scheduler.config.enable_prefix_caching
    assert not panel.scheduler.has_work
    panel.pool.box.value = 10
    assert len(snapshot(panel.scheduler).blocks) == 10
    assert "10 blocks" in panel.text()


def test_abort_has_a_choice_after_a_new_start():
    panel = BlockPanel()
    panel.add(5, 5)
    panel.restart()
    panel.add(5, 5)
    assert panel.who.value == "A"
    panel.halt.click()
    assert "A aborted" in panel.status.value


def test_a_request_the_pool_can_never_hold_is_refused_and_changes_nothing():
    panel = BlockPanel(num_blocks=6)
    with pytest.raises(ValueError, match="24"):
        panel.add(20, 20)
    panel.add(10, 5)
    assert [r.letter for r in snapshot(panel.scheduler).requests] == ["A"]


def test_the_map_of_a_real_engine():
    from llmlab.config import EngineConfig
    from llmlab.engine import Engine, load_model
    from llmlab.sched import SamplingParams

    engine = Engine(load_model("tiny"), EngineConfig(num_blocks=12, block_size=4))
    engine.add(list(range(1, 8)), SamplingParams(max_tokens=3), request_id="chat")
    engine.step()
    text = repr(show_blocks(engine.scheduler))
    assert "A (chat)" in text
    assert "2 held" in text


def test_a_snapshot_needs_no_torch_and_no_plotly():
    code = (
        "import sys; import llmlab.viz.figures.block_map; "
        "print([m for m in ('torch', 'plotly', 'ipywidgets') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"

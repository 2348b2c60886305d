"""Blocks on the move: held beside any table, and given to nobody until the hold ends."""

from __future__ import annotations

import pytest

from llmlab.sched import BlockManager
from tests.sched.lab import make


def taken(num_blocks=4, tokens=6, size=2):
    blocks, request = BlockManager(num_blocks, size), make("a", tokens)
    assert blocks.allocate(request, tokens)
    return blocks, request


def test_a_held_block_outlives_its_table_and_goes_to_nobody():
    blocks, request = taken()
    held = list(request.block_ids)
    blocks.hold("move", held)
    blocks.free(request)
    assert (blocks.num_free, blocks.num_holds) == (1, 1)
    other = make("b", 4)
    assert not blocks.allocate(other, 4)
    assert blocks.allocate(other, 2)
    assert not set(other.block_ids) & set(held)
    blocks.check_integrity([other.block_ids])
    assert blocks.release("move")
    assert blocks.num_free == 3
    blocks.check_integrity([other.block_ids])


def test_a_hold_ends_once():
    blocks, request = taken()
    blocks.hold("move", request.block_ids)
    assert blocks.release("move")
    assert not blocks.release("move")
    assert not blocks.release("nobody")
    assert blocks.num_used == 3  # the table is still there
    blocks.check_integrity([request.block_ids])


def test_the_tail_of_a_hold_is_evicted_before_its_head():
    blocks, request = BlockManager(3, 2, enable_prefix_caching=True), make("a", 6)
    assert blocks.allocate(request, 6)
    request.num_computed_tokens = 6
    blocks.register(request, 6)
    head, *_, tail = request.block_ids
    blocks.hold("move", request.block_ids)
    blocks.free(request)
    blocks.release("move")
    assert [next(iter(blocks._free)), next(reversed(blocks._free))] == [tail, head]


def test_holds_that_make_no_sense_are_refused_and_change_nothing():
    blocks, request = taken()
    blocks.hold("move", request.block_ids[:1])
    with pytest.raises(ValueError, match="holds blocks already"):
        blocks.hold("move", request.block_ids)
    with pytest.raises(ValueError, match="must be in a table"):
        blocks.hold("other", [*request.block_ids, 3])
    assert blocks.num_holds == 1
    blocks.release("move")
    blocks.free(request)
    blocks.check_integrity([])
    assert blocks.num_used == 0

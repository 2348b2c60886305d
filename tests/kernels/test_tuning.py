"""The heuristics: which tiles, how many splits, and what a launch looks like."""

from __future__ import annotations

import pytest
import torch

from llmlab.kernels.paged_decode import decode_launches
from llmlab.kernels.paged_prefill import prefill_launch
from llmlab.kernels.tuning import MAX_SPLITS, MIN_SPLIT, decode_tiles, num_splits, prefill_tiles


@pytest.mark.parametrize("arch", [80, 86, 90, 100, 120])
@pytest.mark.parametrize("dim", [64, 80, 96, 128])
def test_every_chip_and_head_dim_has_tiles(arch, dim):
    tiles = prefill_tiles(arch, dim)
    assert tiles.block_m >= 64  # below that sm_90 has no wgmma
    assert decode_tiles(arch, 5, dim).block_m == 8  # the 5 query heads of a key head


def test_splits_fill_the_card_at_batch_1_and_vanish_at_large_batches():
    assert num_splits(1, 8, 32_768, sms=132) == 32
    assert num_splits(32, 8, 32_768, sms=132) == 2
    assert num_splits(256, 8, 32_768, sms=132) == 1


def test_a_short_context_is_not_split():
    assert num_splits(1, 8, 200, sms=132) == 1
    assert num_splits(1, 8, 2 * MIN_SPLIT, sms=132) == 2


def test_splits_are_powers_of_two_within_the_limit():
    found = {
        num_splits(b, h, c, s)
        for b in (1, 3)
        for h in (1, 3)
        for c in (1, 9999, 10**6)
        for s in (1, 132)
    }
    assert all(n & (n - 1) == 0 and 1 <= n <= MAX_SPLITS for n in found)


def test_a_decode_of_one_split_needs_no_merge():
    q, cache = torch.empty(3, 4, 64), torch.empty(8, 16, 2, 64)
    context, table = torch.ones(3, dtype=torch.int32), torch.zeros(3, 2, dtype=torch.int32)
    one = decode_launches(q, cache, cache, q, context, table, splits=1)
    four = decode_launches(q, cache, cache, q, context, table, splits=4)
    assert [launch.grid for launch in one] == [(3, 2, 1)]
    assert [launch.grid for launch in four] == [(3, 2, 4), (3, 4)]


def test_the_prefill_grid_covers_any_ragged_batch():
    q, cache = torch.empty(200, 6, 64), torch.empty(8, 16, 2, 64)
    for lens in ([200], [1] * 200, [7, 64, 129], [43, 0, 157]):
        start = torch.tensor([0, *lens]).cumsum(0).int()
        context = torch.tensor(lens, dtype=torch.int32)
        table = torch.zeros(len(lens), 2, dtype=torch.int32)
        launch = prefill_launch(q, cache, cache, q, start, context, table)
        tile = launch.constants["BLOCK_M"]
        assert launch.grid[0] >= sum(-(-3 * n // tile) for n in lens)

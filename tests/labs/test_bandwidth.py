"""Achieved bandwidth: the bytes are counted, the inputs are real, the rates are what was timed."""

from __future__ import annotations

import pytest
import torch

from llmlab.engine.attention import paged_attention
from llmlab.labs.bandwidth import (
    Shape,
    copy_rate,
    decode_inputs,
    decode_rates,
    must_move,
    show_rates,
    time_calls,
)

SHAPE = Shape(4, 2, 8)


def test_the_bytes_are_every_key_and_value_of_every_context_once():
    q, caches, step = decode_inputs(3, 20, SHAPE, torch.float32, "cpu", layers=2)
    k, v = caches[0]
    owned = 20 * 3 * (k[0, 0].nbytes + v[0, 0].nbytes)
    assert must_move([20] * 3, 2, 8, 4) == owned
    assert len(caches) == 2
    assert step.context_lens == [20] * 3
    used = step.block_table.flatten().tolist()
    assert sorted(used) == list(range(6))
    assert paged_attention(q, k, v, step).isfinite().all()


def test_every_attention_is_timed_on_every_size():
    calls = []

    def counted(*given):
        calls.append(given[1].data_ptr())
        return paged_attention(*given)

    steps = []
    found = decode_rates(
        {"a": counted, "b": paged_attention},
        [(1, 16), (2, 16)],
        SHAPE,
        must_move,
        repeats=4,
        rotate_mib=0,
        progress=lambda *said: steps.append(said),
    )
    assert [(a.name, a.batch) for a in found] == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert len(calls) == 2 * (3 + 4)
    assert len(set(calls[:7])) == 2  # the layers rotate
    assert steps[-1][:2] == (2, 2)
    for one in found:
        assert one.rate == one.bytes / one.seconds.median > 0
        assert len(one.seconds.samples) == 4
    shown = repr(show_rates(found, 1e9, "here"))
    assert "copies 1.0 GB/s" in shown
    assert f"{100 * found[0].rate / 1e9:.0f} %" in shown


def test_a_copy_counts_what_it_reads_and_what_it_writes(monkeypatch):
    from llmlab.labs import bandwidth
    from llmlab.perf.machine import Measured

    monkeypatch.setattr(bandwidth, "time_calls", lambda run, device, n: Measured((0.5, 0.25)))
    assert copy_rate(mib=1).samples == pytest.approx((2 * 2**20 / 0.5, 2 * 2**20 / 0.25))


def test_warm_up_calls_are_not_timed():
    seen = []
    assert len(time_calls(seen.append, "cpu", 5).samples) == 5
    assert seen == [0, 1, 2, 0, 1, 2, 3, 4]

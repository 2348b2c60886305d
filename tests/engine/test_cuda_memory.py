"""The arithmetic of the KV pool on a card; no card is asked."""

from __future__ import annotations

import pytest
import torch

from llmlab.config import EngineConfig, ModelConfig
from llmlab.engine.cuda_memory import (
    activation_bytes,
    blocks_that_fit,
    bytes_per_block,
    fit_pool,
)

GIB = 2**30
QWEN3 = ModelConfig("q", 28, 1024, 3072, 16, 8, 128, 151_936, 40_960, qk_norm=True)
CONFIG = EngineConfig(max_num_batched_tokens=2048, max_num_seqs=64, max_model_len=4096)


def test_a_token_of_qwen3_takes_112_kib():
    assert bytes_per_block(QWEN3, 16) == 16 * 112 * 1024


def test_the_pool_takes_what_weights_activations_and_reserve_leave():
    # 80 GiB card, 10 used, 10 % reserve, 2 activations: 60 left.
    assert blocks_that_fit(70 * GIB, 80 * GIB, 2**20, 2 * GIB) == 60 * 1024


def test_a_full_card_has_room_for_no_block():
    assert blocks_that_fit(1 * GIB, 80 * GIB, 2**20, 0) == 0


@pytest.mark.parametrize("share", [0.0, -0.1, 1.2])
def test_a_share_outside_0_to_1_is_refused(share):
    with pytest.raises(ValueError, match="gpu_memory_utilization"):
        blocks_that_fit(1, 1, 1, 0, share)


def test_more_tokens_a_step_need_more_activations():
    small = activation_bytes(QWEN3, CONFIG)
    large = activation_bytes(QWEN3, CONFIG.with_(max_num_batched_tokens=4096))
    # 2048 tokens more, each at least its gate, up and product in two bytes.
    assert large - small >= 2048 * 3 * 3072 * 2


def test_fit_pool_fills_the_card(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (20 * GIB, 24 * GIB))
    config = fit_pool(QWEN3, CONFIG)
    left = int(24 * GIB * 0.9) - 4 * GIB - activation_bytes(QWEN3, CONFIG)
    assert config.num_blocks == left // bytes_per_block(QWEN3, 16)
    assert config.with_(num_blocks=1) == CONFIG.with_(num_blocks=1)


def test_a_card_too_small_for_one_request_says_what_fits(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 * GIB, 4 * GIB))
    with pytest.raises(ValueError, match=r"max_model_len = 40000: must be at most \d+"):
        fit_pool(QWEN3, CONFIG.with_(max_model_len=40_000))

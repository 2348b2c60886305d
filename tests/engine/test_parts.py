"""What an engine is made of where it was not told; the card is a fake that names its free bytes."""

from __future__ import annotations

import pytest
import torch

from llmlab.config import Default, EngineConfig, ModelConfig
from llmlab.engine import Engine
from llmlab.engine.cuda_memory import activation_bytes, bytes_per_block
from llmlab.engine.parts import choose_config
from llmlab.sched.chunked import Chunked
from tests.engine.lazy import history_model

GIB = 2**30
CONFIG = EngineConfig(max_num_batched_tokens=512, max_num_seqs=64, max_model_len=4096)


@pytest.fixture
def card(monkeypatch):
    """A model of Qwen3-0.6B's shape on a card of 24 GiB, 4 of them taken."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (20 * GIB, 24 * GIB))
    model = history_model()
    model.config = ModelConfig("q", 28, 1024, 3072, 16, 8, 128, 151_936, 40_960, qk_norm=True)
    model.device, model.dtype = "cuda", torch.bfloat16
    return model


class Seen:
    """A runner that keeps what it was given."""

    def __init__(self, model, config, attention):
        self.config = config


def expected(model, share):
    left = int(24 * GIB * share) - 4 * GIB - activation_bytes(model.config, CONFIG)
    return left // bytes_per_block(model.config, 16)


@pytest.mark.parametrize(("asked", "share"), [(None, 0.9), (0.9, 0.9), (0.5, 0.5)])
def test_on_cuda_the_pool_is_what_weights_step_and_reserve_leave(card, asked, share):
    engine = Engine(card, CONFIG, runner=Seen, gpu_memory_utilization=asked)
    blocks = expected(card, share)
    assert blocks != 1024
    assert engine.config == CONFIG.with_(num_blocks=blocks)
    assert engine.runner.config == engine.scheduler.config == engine.config
    assert engine.scheduler.blocks.num_free == blocks


def test_float32_keys_take_twice_the_room(card):
    half = choose_config(card, CONFIG, None, None).num_blocks
    card.dtype = torch.float32
    assert 0.4 < choose_config(card, CONFIG, None, None).num_blocks / half < 0.5


@pytest.mark.parametrize("blocks", [1024, 77])
def test_a_number_that_was_named_wins(card, blocks):
    config = CONFIG.with_(num_blocks=blocks)
    for share in (None, 0.5):
        assert choose_config(card, config, None, share).num_blocks == blocks
    made = Chunked(CONFIG)  # its pool exists already
    assert Engine(card, scheduler=made, runner=Seen).config.num_blocks == 1024


def test_no_more_blocks_than_the_running_requests_can_fill(card):
    config = CONFIG.with_(max_num_seqs=2, max_model_len=100, block_size=8)
    assert choose_config(card, config, None, None).num_blocks == 2 * 13
    cached = config.with_(enable_prefix_caching=True)
    assert choose_config(card, cached, None, None).num_blocks > 10_000


def test_a_card_too_small_says_what_fits(card, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 * GIB, 4 * GIB))
    with pytest.raises(ValueError, match=r"max_model_len = 40000: must be at most \d+"):
        Engine(card, CONFIG.with_(max_model_len=40_000), runner=Seen)
    with pytest.raises(ValueError, match="gpu_memory_utilization"):
        Engine(card, CONFIG, runner=Seen, gpu_memory_utilization=1.5)


def test_without_a_card_the_pool_is_the_configurations(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: pytest.fail("a card is asked"))
    model = history_model(limit=4096)
    assert choose_config(model, None, None, None) == EngineConfig(num_blocks=1024)
    with pytest.raises(ValueError, match=r"gpu_memory_utilization = 0.8.*num_blocks"):
        choose_config(model, None, None, 0.8)


def test_the_default_number_is_known_as_one_and_is_a_number_all_the_same():
    config = EngineConfig(max_num_seqs=3)
    assert isinstance(config.num_blocks, Default)
    assert isinstance(config.with_(max_num_seqs=4).num_blocks, Default)
    assert not isinstance(config.with_(num_blocks=1024).num_blocks, Default)
    assert config == config.with_(num_blocks=1024)
    assert (repr(config.num_blocks), f"{config.num_blocks}") == ("1024", "1024")

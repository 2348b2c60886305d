"""What engine tests share: models loaded once, and a forward pass without any cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from llmlab.engine import Model, load_model
from llmlab.engine.attention import paged_attention
from llmlab.engine.batch import Batch, make_batch
from llmlab.engine.kv_cache import KVCache


def _one_shot_batch(ids: Sequence[int], block_size: int, rows: Sequence[int]) -> Batch:
    """All of `ids` in one chunk of one request, its blocks 0, 1, 2, ..."""
    count = len(ids)
    table = range(-(-count // block_size))
    return make_batch(ids, range(count), range(count), [0, count], [count], [list(table)], rows)


def _logits_of(model: Model, ids: Sequence[int]) -> torch.Tensor:
    """Logits [P, V] of every position, computed in one pass over a pool of its own."""
    kv = KVCache(model.config, 1, len(ids), dtype=model.dtype)
    with torch.inference_mode():
        return model.forward(_one_shot_batch(ids, len(ids), range(len(ids))), kv, paged_attention)


def _greedy_of(model: Model, ids: Sequence[int], count: int) -> list[int]:
    """`count` greedy tokens; every token recomputes the whole history, nothing is reused."""
    history = list(ids)
    for _ in range(count):
        history.append(int(_logits_of(model, history)[-1].argmax()))
    return history[len(ids) :]


@pytest.fixture(scope="session")
def logits_of() -> Callable[[Model, Sequence[int]], torch.Tensor]:
    return _logits_of


@pytest.fixture(scope="session")
def greedy_of() -> Callable[[Model, Sequence[int], int], list[int]]:
    return _greedy_of


@pytest.fixture(scope="session")
def tiny64() -> Model:
    return load_model("tiny", dtype=torch.float64)


@pytest.fixture(scope="session")
def tiny() -> Model:
    return load_model("tiny")


@pytest.fixture(scope="session")
def smollm2() -> Model:
    """The real model in plain float32."""
    return load_model(exact=True)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty weight cache of the test's own."""
    monkeypatch.setenv("LLMLAB_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"

"""Paged caches whose every slot that no token owns is poison: NaN, infinity or huge values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

pytest.importorskip("triton")

UNUSED_PAGE = 2**30  # what stands in the block table where nothing may be read
TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 4e-2}


@dataclass
class Paged:
    """One attention call: arguments in the order that the kernels and the spec take."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    query_start: torch.Tensor
    context_len: torch.Tensor
    block_table: torch.Tensor

    @property
    def args(self) -> tuple[torch.Tensor, ...]:
        return (
            self.q,
            self.k_cache,
            self.v_cache,
            self.query_start,
            self.context_len,
            self.block_table,
        )


def make_paged(
    query_lens: list[int],
    context_lens: list[int],
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 64,
    page: int = 16,
    dtype: torch.dtype = torch.float16,
    poison: float = math.nan,
    scale: float = 1.0,
    seed: int = 0,
) -> Paged:
    """Random tokens on randomly placed pages; tables exactly as wide as the longest request."""
    gen = torch.Generator().manual_seed(seed)
    pages = [-(-c // page) for c in context_lens]
    total = sum(pages) + 3
    order = torch.randperm(total, generator=gen).tolist()
    k, v = (torch.full((total, page, kv_heads, dim), poison, dtype=dtype) for _ in range(2))
    table = torch.full((len(pages), max([*pages, 1])), UNUSED_PAGE, dtype=torch.int32)
    for r, (count, context) in enumerate(zip(pages, context_lens, strict=True)):
        for j in range(count):
            table[r, j] = block = order.pop()
            live = min(page, context - j * page)
            for cache in (k, v):
                new = torch.randn(live, kv_heads, dim, generator=gen) * scale
                cache[block, :live] = new.to(dtype)
    q = (torch.randn(sum(query_lens), heads, dim, generator=gen) * scale).to(dtype)
    starts = torch.tensor([0, *query_lens]).cumsum(0).int()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tensors = (q, k, v, starts, torch.tensor(context_lens, dtype=torch.int32), table)
    return Paged(*(t.to(device) for t in tensors))


@pytest.fixture
def paged() -> Callable[..., Paged]:
    return make_paged


@pytest.fixture
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def close() -> Callable[[torch.Tensor, torch.Tensor], None]:
    """Assert a result finite and near its float64 spec, within the dtype's tolerance."""

    def check(result: torch.Tensor, expected: torch.Tensor, factor: float = 1.0) -> None:
        assert result.shape == expected.shape
        assert torch.isfinite(result).all()
        limit = TOLERANCE[result.dtype] * factor
        error = (result.double() - expected.double()).abs()
        error = error / expected.double().abs().clamp(min=1.0)
        worst = error.max().item() if error.numel() else 0.0
        assert worst <= limit, f"error {worst:.2e} > {limit:.0e}"

    return check

"""Every kernel variant that the engine launches for the models it is made for.

Tensors are on torch's meta device: they have shapes and strides, and no memory. Nothing here runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from llmlab.kernels.activation import silu_mul_launch
from llmlab.kernels.fused import rope_and_write_launch
from llmlab.kernels.kv_write import kv_write_launch
from llmlab.kernels.launch import Launch
from llmlab.kernels.norm import rms_norm_launch
from llmlab.kernels.paged_decode import decode_launches
from llmlab.kernels.paged_prefill import prefill_launch
from llmlab.kernels.rope import rope_launch

PAGE = 16

# name, query heads, key heads, head dim, hidden size, intermediate size, QK-norm (model cards)
SHAPES = (
    ("Qwen3-0.6B", 16, 8, 128, 1024, 3072, True),
    ("Llama-3.1-8B", 32, 8, 128, 4096, 14336, False),
    ("Llama-3.2-1B", 32, 8, 64, 2048, 8192, False),
    ("SmolLM2-135M", 9, 3, 64, 576, 1536, False),
)
PADDED = (("head_dim 80", 32, 32, 80), ("head_dim 96", 32, 32, 96))

Variant = tuple[str, str, Launch]


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def variants(arch: int) -> Iterator[Variant]:
    """(kernel, variant, launch) for sm_<arch>."""
    for name, heads, kv_heads, dim, hidden, inner, norm in SHAPES:
        yield from _attention(arch, name, heads, kv_heads, dim)
        yield from _layer(name, heads, kv_heads, dim, hidden, inner, norm)
    for name, heads, kv_heads, dim in PADDED:
        yield from _attention(arch, name, heads, kv_heads, dim)
    yield from _alone()


def _attention(arch: int, name: str, heads: int, kv_heads: int, dim: int) -> Iterator[Variant]:
    requests, pages = 8, 64
    q, cache = meta(4096, heads, dim), meta(4096, PAGE, kv_heads, dim)
    start, context = meta(requests + 1, dtype=torch.int32), meta(requests, dtype=torch.int32)
    table = meta(requests, pages, dtype=torch.int32)
    launch = prefill_launch(q, cache, cache, q, start, context, table, arch=arch)
    yield "prefill", f"{name} {_tile(launch)}", launch
    for splits in (1, 16):
        decode, *merge = decode_launches(
            q, cache, cache, q, context, table, splits=splits, arch=arch
        )
        kind = "split" if splits > 1 else "whole"
        yield "decode", f"{name} {kind} {_tile(decode)}", decode
        for launch in merge:
            yield "merge", f"{name} S{splits}", launch
    if dim == 128 and heads == 32:
        _, most = decode_launches(q, cache, cache, q, context, table, splits=64, arch=arch)
        yield "merge", f"{name} S64", most


def _layer(
    name: str, heads: int, kv_heads: int, dim: int, hidden: int, inner: int, norm: bool
) -> Iterator[Variant]:
    table = meta(4096, dim, dtype=torch.float32)
    cache, weight = meta(4096, PAGE, kv_heads, dim), meta(dim) if norm else None
    for kind, tokens in (("decode", 8), ("prefill", 512)):
        at = meta(tokens, dtype=torch.int64)
        qkv, q = meta(tokens, heads + 2 * kv_heads, dim), meta(tokens, heads, dim)
        launch = rope_and_write_launch(qkv, at, at, table, q, cache, cache, weight, weight)
        yield "rope_and_write", f"{name} {kind}", launch
    x = meta(8, hidden)
    yield "rms_norm", f"{name} E{hidden}", rms_norm_launch(x, meta(hidden), x, 1e-5)
    yield "rms_norm", f"{name} E{hidden} residual", rms_norm_launch(x, meta(hidden), x, 1e-5, x)
    yield "silu_mul", f"{name} I{inner}", silu_mul_launch(meta(8, 2 * inner), meta(8, inner))


def _alone() -> Iterator[Variant]:
    """The kernels that the engine runs fused, by themselves."""
    k, cache = meta(8, 8, 128), meta(4096, PAGE, 8, 128)
    at = meta(8, dtype=torch.int64)
    yield "kv_write", "8 heads D128", kv_write_launch(k, k, cache, cache, at)
    yield "rope", "D128", rope_launch(k, at, meta(4096, 128, dtype=torch.float32))


def _tile(launch: Launch) -> str:
    c: dict[str, Any] = launch.constants
    tile = f"D{c['D']} G{c['GROUP']} BM{c['BLOCK_M']} BN{c['BLOCK_N']}"
    return f"{tile} st{launch.num_stages} w{launch.num_warps}"

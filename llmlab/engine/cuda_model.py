"""The forward pass of `model.py`, with the Triton kernels: 9 launches a layer at batch 1.

    norm(+residual)  qkv  norm+rope+write  attention  o  norm(+residual)  gate_up  silu*up  down

The same weights, the same order, the same answer; what differs is how often a tensor travels
through memory. The parts are named in a profile (`ranges=True`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F

from llmlab.engine.attention import Attention
from llmlab.engine.batch import Batch
from llmlab.engine.kv_cache import KVCache
from llmlab.engine.model import Model
from llmlab.kernels.activation import silu_mul
from llmlab.kernels.fused import rope_and_write
from llmlab.kernels.norm import rms_norm


def fused_forward(
    model: Model,
    batch: Batch,
    kv: KVCache,
    attention: Attention,
    table: torch.Tensor,
    *,
    ranges: bool = False,
) -> torch.Tensor:
    """Logits [S, V] of `batch.sample_rows`. `table` [L, D]: see kernels.rope.rope_table."""
    config, eps = model.config, model.config.rms_norm_eps
    heads, dim = config.num_attention_heads, config.head_dim
    part = _named if ranges else _unnamed
    with part("embedding"):
        residual = F.embedding(batch.input_ids, model.embedding).to(model.dtype)  # [T, E]
    with part("norm"):
        x = rms_norm(residual, model.layers[0].input_norm, eps)
    for index, layer in enumerate(model.layers):
        k_cache, v_cache = kv.layer(index)
        with part("qkv"):
            qkv = layer.qkv(x).view(x.shape[0], -1, dim)  # [T, Hq + 2 Hkv, D]
        with part("rope_and_write"):
            q = rope_and_write(
                qkv,
                batch.positions,
                batch.slots,
                table,
                k_cache,
                v_cache,
                layer.q_norm,
                layer.k_norm,
                eps,
            )
        with part("attention"):
            out = attention(q, k_cache, v_cache, batch)  # [T, Hq, D]
        with part("output"):
            x = layer.output(out.view(-1, heads * dim))  # [T, Hq * D] in, [T, E] out
        with part("norm"):
            x = rms_norm(x, layer.mlp_norm, eps, residual)
        with part("mlp"):
            x = layer.down(silu_mul(layer.gate_up(x)))
        is_last = index + 1 == len(model.layers)
        with part("norm"):
            after = model.norm if is_last else model.layers[index + 1].input_norm
            x = rms_norm(x, after, eps, residual)
    with part("head"):
        return model.head(x[batch.sample_rows])


def _named(name: str) -> AbstractContextManager[object]:
    return torch.profiler.record_function(f"llmlab.{name}")


def _unnamed(name: str) -> AbstractContextManager[object]:
    return nullcontext()

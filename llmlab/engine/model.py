"""One forward pass for the Llama and Qwen3 families over a flat batch and a paged cache.

It knows neither requests nor scheduling: tokens in, logits of the wanted rows out. Notation:
T tokens, E hidden size, Hq query heads, Hkv key heads, D head dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from llmlab.config import ModelConfig
from llmlab.engine.attention import Attention
from llmlab.engine.batch import Batch
from llmlab.engine.kv_cache import KVCache
from llmlab.engine.tokenizer import Tokenizer

Linear = Callable[[torch.Tensor], torch.Tensor]


@dataclass(slots=True)
class Layer:
    """Weights of one block. qkv and gate_up are fused: one product instead of three and two."""

    input_norm: torch.Tensor
    qkv: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


@dataclass(slots=True)
class Model:
    """A loaded model: shape, tokenizer, weights. `embedding` is [V, E], any floating type."""

    config: ModelConfig
    tokenizer: Tokenizer
    embedding: torch.Tensor
    layers: list[Layer]
    norm: torch.Tensor
    head: Linear
    dtype: torch.dtype = torch.float32
    device: torch.device | str = "cpu"
    packed: bool = False

    @property
    def kv_dtype(self) -> torch.dtype:
        """Of its KV cache: 16 bits beside weights in 16 bits, else as it computes."""
        return torch.float16 if self.packed else self.dtype

    def forward(self, batch: Batch, kv: KVCache, attention: Attention) -> torch.Tensor:
        """Write this batch's keys and values, return logits [S, V] of `batch.sample_rows`."""
        eps = self.config.rms_norm_eps
        x = F.embedding(batch.input_ids, self.embedding).to(self.dtype)  # [T, E]
        rotary = self.rotary(batch.positions)
        for index, layer in enumerate(self.layers):
            q, k, v = self._project(layer, rms_norm(x, layer.input_norm, eps), rotary)
            kv.write(index, k, v, batch.slots, padded=batch.padded)
            heads = attention(q, *kv.layer(index), batch)  # [T, Hq, D]
            x = x + layer.output(heads.flatten(1))  # [T, Hq * D] in
            gate, up = layer.gate_up(rms_norm(x, layer.mlp_norm, eps)).chunk(2, dim=-1)
            x = x + layer.down(F.silu(gate).mul_(up))
        return self.head(rms_norm(x[batch.sample_rows], self.norm, eps))

    def _project(
        self, layer: Layer, x: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rotated queries [T, Hq, D] and keys [T, Hkv, D], and values [T, Hkv, D]."""
        c = self.config
        both = c.num_attention_heads + c.num_key_value_heads
        # [T, Hq + 2 Hkv, D]
        qkv = layer.qkv(x).view(-1, both + c.num_key_value_heads, c.head_dim)
        qk, v = qkv[:, :both], qkv[:, both:]
        if layer.q_norm is not None and layer.k_norm is not None:
            q = rms_norm(qk[:, : c.num_attention_heads], layer.q_norm, c.rms_norm_eps)
            k = rms_norm(qk[:, c.num_attention_heads :], layer.k_norm, c.rms_norm_eps)
            qk = torch.cat((q, k), dim=1)
        qk = rotate(qk, *rotary)
        return qk[:, : c.num_attention_heads], qk[:, c.num_attention_heads :], v

    def rotary(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine of every token's angles, each [T, 1, D]; the sine's first half is < 0."""
        dim = self.config.head_dim
        # float64: at position 8000 float32 angles are wrong in the fourth digit.
        powers = torch.arange(0, dim, 2, device=positions.device, dtype=torch.float64) / dim
        frequencies = torch.pow(self.config.rope_theta, -powers)
        angles = positions[:, None, None] * frequencies  # [T, 1, D / 2]
        cos, sin = angles.cos(), angles.sin()
        cos, sin = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
        return cos.to(self.dtype), sin.to(self.dtype)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich 2019)."""
    if x.device.type != "cpu":
        return F.rms_norm(x, weight.shape, weight, eps)
    # On a CPU F.rms_norm is seven small operations; with n values this is the same in four:
    # sqrt(mean + eps) = hypot(|x|, sqrt(n eps)) / sqrt(n).
    n = x.shape[-1]
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    scale: torch.Tensor = torch.hypot(length, length.new_full((), (n * eps) ** 0.5)) / n**0.5
    return x / scale * weight


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of x [T, H, D]; pairs are (i, i + D/2), as Hugging Face stores them."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin)


class PlainLinear:
    """y = x W^T + b with W [out, in]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)

"""Frozen configurations of the model and of the engine.

Names follow Hugging Face (`ModelConfig`) and vLLM (`EngineConfig`), so what is learnt here
carries over. Every error names the field, the value and what is allowed. No torch here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeGuard


def require(ok: bool, owner: str, field: str, value: Any, allowed: str) -> None:
    """Raise a ValueError that says which field is wrong and what would be right."""
    if not ok:
        raise ValueError(f"{owner}.{field} = {value!r}: must be {allowed}")


def require_int(owner: str, field: str, value: Any, low: int, high: int | None = None) -> None:
    """Require an integer in [low, high]; bool is no integer here."""
    fits = isinstance(value, int) and not isinstance(value, bool) and value >= low
    fits = fits and (high is None or value <= high)
    allowed = f"a whole number >= {low}" if high is None else f"a whole number in {low}..{high}"
    require(fits, owner, field, value, allowed)


def is_real(value: Any) -> TypeGuard[float]:
    """Whether it is a finite number; bool is none here."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and -math.inf < value < math.inf


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a decoder-only transformer of the Llama or Qwen3 family.

    `num_experts` = 0 means a dense MLP. With experts, `moe_intermediate_size` is the width
    of one expert and `num_experts_per_tok` how many a token uses.
    """

    name: str
    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    qk_norm: bool = False
    attention_bias: bool = False
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0

    def __post_init__(self) -> None:
        for field in (
            "num_hidden_layers",
            "hidden_size",
            "intermediate_size",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "vocab_size",
            "max_position_embeddings",
        ):
            require_int("ModelConfig", field, getattr(self, field), 1)
        require(
            self.num_attention_heads % self.num_key_value_heads == 0,
            "ModelConfig",
            "num_key_value_heads",
            self.num_key_value_heads,
            f"a divisor of num_attention_heads ({self.num_attention_heads})",
        )
        for field in ("rope_theta", "rms_norm_eps"):
            value = getattr(self, field)
            require(is_real(value) and value > 0, "ModelConfig", field, value, "a number > 0")
        require_int("ModelConfig", "num_experts", self.num_experts, 0)
        if self.num_experts:
            require_int(
                "ModelConfig", "num_experts_per_tok", self.num_experts_per_tok, 1, self.num_experts
            )
            require_int("ModelConfig", "moe_intermediate_size", self.moe_intermediate_size, 1)


class Default(int):
    """A number that nobody chose. Who can find a better one, by asking a card, may."""


SchedulingPolicy = Literal["fcfs", "priority"]


@dataclass(frozen=True)
class EngineConfig:
    """What a learner turns. Names and meaning are vLLM's unless said.

    max_num_batched_tokens: T, token budget of one step (the "chunk size" of chunked prefill)
    max_num_seqs: S, most requests running at once (the "batch size")
    block_size: B, tokens in one KV block
    num_blocks: N, KV blocks in the pool (vLLM: num_gpu_blocks); no block is reserved. Without it
        an engine on CUDA takes as many as the card has room for
    max_model_len: L, most tokens (prompt + output) of one request
    long_prefill_token_threshold: most prompt tokens of one request in one step; 0 = no limit
    watermark: share of the pool kept free when a waiting request is admitted (0.0 = none)
    enable_prefix_caching: share full KV blocks between requests with equal prefixes
    policy: "fcfs" (first come, first served) or "priority" (small number = urgent)
    """

    max_num_batched_tokens: int = 256
    max_num_seqs: int = 64
    block_size: int = 16
    num_blocks: int = Default(1024)
    max_model_len: int = 2048
    long_prefill_token_threshold: int = 0
    watermark: float = 0.0
    enable_prefix_caching: bool = False
    policy: SchedulingPolicy = "fcfs"

    def __post_init__(self) -> None:
        for field in (
            "max_num_batched_tokens",
            "max_num_seqs",
            "block_size",
            "num_blocks",
            "max_model_len",
        ):
            require_int("EngineConfig", field, getattr(self, field), 1)
        require_int(
            "EngineConfig", "long_prefill_token_threshold", self.long_prefill_token_threshold, 0
        )
        is_share = is_real(self.watermark) and 0.0 <= self.watermark < 1.0
        require(is_share, "EngineConfig", "watermark", self.watermark, "a share in [0, 1)")
        require(
            self.policy in ("fcfs", "priority"),
            "EngineConfig",
            "policy",
            self.policy,
            "'fcfs' or 'priority'",
        )

    def with_(self, **changes: Any) -> EngineConfig:
        """A copy with some fields changed."""
        return replace(self, **changes)

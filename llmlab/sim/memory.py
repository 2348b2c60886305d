"""How many KV blocks fit beside the weights. No torch."""

from __future__ import annotations

from typing import Any

from llmlab.config import EngineConfig, is_real, require, require_int
from llmlab.perf.cost import CostModel, weight_bytes
from llmlab.perf.hardware import Hardware


def num_kv_blocks(
    cost: CostModel, hardware: Hardware, block_size: int = 16, utilization: float = 0.9
) -> int:
    """KV blocks of `block_size` tokens that fit on all devices together (vLLM: num_gpu_blocks).

    utilization: share of the memory the engine may use (vLLM: gpu_memory_utilization). What it
    leaves is for activations and the driver. Raises ValueError with the bytes that are missing.
    """
    ok = is_real(utilization) and 0 < utilization <= 1
    require(ok, "memory", "gpu_memory_utilization", utilization, "a share in (0, 1]")
    require_int("EngineConfig", "block_size", block_size, 1)
    usable = hardware.memory * utilization * cost.tensor_parallel
    weights = weight_bytes(cost.model, cost.precision.weights)
    left, block = usable - weights, _block_bytes(cost, block_size)
    if left < block:
        raise ValueError(
            f"{cost.model.name} does not fit on {cost.tensor_parallel} x {hardware.name}: "
            f"{weights / 1e9:.2f} GB of {cost.precision.weights} weights and one KV block, "
            f"{usable / 1e9:.2f} GB usable, {round(block - left):,} bytes are missing; "
            "use a smaller model, a smaller dtype or more devices (--tensor-parallel)"
        )
    return int(left // block)


def _block_bytes(cost: CostModel, block_size: int) -> float:
    """Of one block, over all devices."""
    return block_size * cost.kv_bytes * cost.tensor_parallel


def engine_config(
    cost: CostModel, hardware: Hardware, utilization: float = 0.9, **knobs: Any
) -> EngineConfig:
    """An EngineConfig whose pool is what fits, whose context is the model's; knobs override."""
    settings: dict[str, Any] = {
        "max_model_len": cost.model.max_position_embeddings,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 256,
        "block_size": 16,
        **knobs,
    }
    if "num_blocks" not in knobs:
        fits = num_kv_blocks(cost, hardware, settings["block_size"], utilization)
        return EngineConfig(**settings, num_blocks=fits)
    config = EngineConfig(**settings)
    check_pool(cost, hardware, config, utilization)
    return config


def check_pool(
    cost: CostModel, hardware: Hardware, config: EngineConfig, utilization: float = 0.9
) -> None:
    """ValueError, with the bytes that are missing, if the pool of `config` does not fit."""
    fits = num_kv_blocks(cost, hardware, config.block_size, utilization)
    if config.num_blocks > fits:
        missing = (config.num_blocks - fits) * _block_bytes(cost, config.block_size)
        raise ValueError(
            f"num_blocks = {config.num_blocks}: only {fits} blocks fit beside the weights "
            f"on {hardware.name} ({round(missing):,} bytes are missing)"
        )

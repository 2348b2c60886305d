"""How many KV blocks fit beside the weights. No torch."""

from __future__ import annotations

from typing import Any

from llmlab.config import EngineConfig, ModelConfig, require
from llmlab.perf.cost import CostModel, weight_bytes
from llmlab.perf.hardware import Hardware


def kv_memory(cost: CostModel, hardware: Hardware, utilization: float = 0.9) -> float:
    """Bytes left for keys and values on all devices together.

    utilization: share of the memory the engine may use (vLLM: gpu_memory_utilization). What it
    leaves is for activations and the driver. Raises ValueError with the bytes that are missing.
    """
    ok = isinstance(utilization, (int, float)) and 0 < utilization <= 1
    require(ok, "memory", "gpu_memory_utilization", utilization, "a share in (0, 1]")
    usable = hardware.memory * utilization * cost.tensor_parallel
    weights = weight_bytes(cost.model, cost.precision.weights)
    left = usable - weights
    block = 16 * cost.kv_bytes * cost.tensor_parallel
    if left < block:
        raise ValueError(
            f"{cost.model.name} does not fit on {cost.tensor_parallel} x {hardware.name}: "
            f"{weights / 1e9:.2f} GB of {cost.precision.weights} weights and one KV block, "
            f"{usable / 1e9:.2f} GB usable, {round(block - left):,} bytes are missing; "
            "use a smaller model, a smaller dtype or more devices (--tensor-parallel)"
        )
    return left


def num_kv_blocks(
    cost: CostModel, hardware: Hardware, block_size: int = 16, utilization: float = 0.9
) -> int:
    """KV blocks of `block_size` tokens that fit (vLLM: num_gpu_blocks)."""
    per_block = block_size * cost.kv_bytes * cost.tensor_parallel
    left = kv_memory(cost, hardware, utilization)
    return max(1, int(left // per_block))


def engine_config(
    cost: CostModel, hardware: Hardware, utilization: float = 0.9, **knobs: Any
) -> EngineConfig:
    """An EngineConfig whose pool is what fits, whose context is the model's; knobs override."""
    model: ModelConfig = cost.model
    defaults = {"max_num_batched_tokens": 2048, "max_num_seqs": 256, "block_size": 16}
    settings: dict[str, Any] = {"max_model_len": model.max_position_embeddings, **defaults, **knobs}
    fits = num_kv_blocks(cost, hardware, settings["block_size"], utilization)
    if "num_blocks" not in knobs:
        settings["num_blocks"] = fits
    elif settings["num_blocks"] > fits:
        missing = (settings["num_blocks"] - fits) * settings["block_size"] * cost.kv_bytes
        raise ValueError(
            f"num_blocks = {settings['num_blocks']}: only {fits} blocks fit beside the weights "
            f"on {hardware.name} ({round(missing * cost.tensor_parallel):,} bytes are missing)"
        )
    return EngineConfig(**settings)

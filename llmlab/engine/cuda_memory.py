"""How much of a card the KV pool may take: arithmetic, and the two calls that ask the card.

    total    |---- weights and others ----|-- activations --|------ pool ------|-- reserve --|
             used now                      of the largest step                  1 - utilization

The reserve is what CUDA graphs, the libraries' workspaces and the allocator's rounding take.
"""

from __future__ import annotations

import torch

from llmlab.config import EngineConfig, ModelConfig, require

GPU_MEMORY_UTILIZATION = 0.9  # vLLM's name and default: the rest of the card is the reserve

MOST_BLOCKS = 2**20  # the scheduler's list of free blocks is a Python one


def bytes_per_block(model: ModelConfig, block_size: int, element_size: int = 2) -> int:
    """Keys and values of one block over all layers."""
    per_token = 2 * model.num_hidden_layers * model.num_key_value_heads * model.head_dim
    return per_token * block_size * element_size


def activation_bytes(model: ModelConfig, config: EngineConfig, element_size: int = 2) -> int:
    """Upper estimate of what the largest step holds beside weights and cache.

    Per token: residual and normalised input (3 E at the worst moment), then either qkv and the
    rotated q and the attention's output, or gate, up and their product. Per request: logits in
    the model's type and in float32, and three float64 rows of the sampler.
    """
    heads = 2 * model.num_attention_heads + 2 * model.num_key_value_heads
    attention = (heads + model.num_attention_heads) * model.head_dim
    width = 3 * model.hidden_size + max(attention, 3 * model.intermediate_size)
    logits = model.vocab_size * (element_size + 4 + 3 * 8)
    return config.max_num_batched_tokens * width * element_size + config.max_num_seqs * logits


def blocks_that_fit(
    free: int,
    total: int,
    block_bytes: int,
    activations: int,
    gpu_memory_utilization: float = GPU_MEMORY_UTILIZATION,
) -> int:
    """Blocks of the pool on a card with `free` of `total` bytes left; 0 if not even one fits."""
    share = gpu_memory_utilization
    allowed = f"a share in (0, 1], not {share!r}"
    require(0.0 < share <= 1.0, "CudaRunner", "gpu_memory_utilization", share, allowed)
    used = total - free
    return max(0, int(total * share) - used - activations) // block_bytes


def fit_pool(
    model: ModelConfig,
    config: EngineConfig,
    device: torch.device | str = "cuda",
    *,
    element_size: int = 2,
    gpu_memory_utilization: float = GPU_MEMORY_UTILIZATION,
) -> EngineConfig:
    """`config` with as many blocks as the card has room for; call it once the weights are there.

    But no more than can be of use: max_num_seqs requests of max_model_len tokens, or MOST_BLOCKS
    with a prefix cache. ValueError if the pool would not even hold one such request.
    """
    free, total = torch.cuda.mem_get_info(device)
    blocks = blocks_that_fit(
        free,
        total,
        bytes_per_block(model, config.block_size, element_size),
        activation_bytes(model, config, element_size),
        gpu_memory_utilization,
    )
    useful = config.max_num_seqs * -(-config.max_model_len // config.block_size)
    blocks = min(blocks, MOST_BLOCKS if config.enable_prefix_caching else useful)
    tokens = blocks * config.block_size
    if tokens < config.max_model_len:
        raise ValueError(
            f"EngineConfig.max_model_len = {config.max_model_len}: must be at most {tokens}, the "
            f"tokens whose keys and values fit in {free / 2**30:.1f} GiB free of "
            f"{total / 2**30:.1f} GiB with {1 - gpu_memory_utilization:.0%} in reserve"
        )
    return config.with_(num_blocks=blocks)

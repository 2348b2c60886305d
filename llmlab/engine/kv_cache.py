"""The pool of keys and values: fixed-size blocks that block tables point into.

It knows nothing of requests. Keys and values may be narrower than the model computes: they are
rounded as they are written. A slot is `block * block_size + offset`; what was never written is
never read, so the pool starts uninitialised and costs memory only where it is touched.
"""

from __future__ import annotations

import torch

from llmlab.config import ModelConfig


class KVCache:
    """Keys and values of every layer, each [L, N, B, Hkv, D]: layer, block, offset, head, dim."""

    def __init__(
        self,
        model: ModelConfig,
        num_blocks: int,
        block_size: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (
            model.num_hidden_layers,
            num_blocks,
            block_size,
            model.num_key_value_heads,
            model.head_dim,
        )
        self.k = torch.empty(shape, dtype=dtype, device=device)
        self.v = torch.empty(shape, dtype=dtype, device=device)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values one token takes over all layers."""
        layers, _, _, heads, dim = self.k.shape
        return 2 * layers * heads * dim * self.k.element_size()

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer, each [N, B, Hkv, D], as views."""
        return self.k[index], self.v[index]

    def write(
        self,
        layer: int,
        k: torch.Tensor,
        v: torch.Tensor,
        slots: torch.Tensor,
        *,
        padded: bool = True,
    ) -> None:
        """Store k, v [T, Hkv, D] at `slots` [T]; a slot of -1 is padding and writes nothing.

        padded False is the caller's word that there is none: it saves a look at the slots.
        """
        if padded:
            real = slots >= 0
            k, v, slots = k[real], v[real], slots[real]
        k, v = k.to(self.k.dtype), v.to(self.v.dtype)
        self.k[layer].flatten(0, 1).index_copy_(0, slots, k)  # [N * B, Hkv, D]
        self.v[layer].flatten(0, 1).index_copy_(0, slots, v)

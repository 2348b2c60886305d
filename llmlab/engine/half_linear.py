"""Linear layers with weights in 16 bits for the CPU; input, output and arithmetic in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from llmlab.engine.model import Linear
    from llmlab.kernels.cpu_weights import Products

MakeLinear = Callable[[Sequence[torch.Tensor], "torch.Tensor | None"], "Linear"]
"""From weights [N, K] of one input, one below the other, and a bias."""


class HalfLinear:
    """y = x W^T + b with W in this package's own panels, see `kernels.cpu_weights`."""

    def __init__(
        self, products: Products, parts: Sequence[torch.Tensor], bias: torch.Tensor | None = None
    ) -> None:
        from llmlab.kernels.cpu_weights import pack
        from llmlab.kernels.cpu_width import COLUMNS

        self._products, self.bias = products, bias
        self.rows = sum(len(part) for part in parts)
        self.packed = pack(parts, products.memory)
        self.padded = self.packed.shape[0] * COLUMNS

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, K] to [T, N]."""
        y = torch.empty(x.shape[0], self.padded)
        self._products.run(x.contiguous(), self.packed, y)
        if self.padded != self.rows:
            y = y[:, : self.rows].contiguous()
        return y if self.bias is None else y.add_(self.bias)

    def into(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The same into y [T, N] if it can take the result; x contiguous. Returns the result."""
        if self.padded != self.rows or self.bias is not None:
            return self(x)
        self._products.run(x, self.packed, y)
        return y


class PackedLinear:
    """The same, packed and multiplied by FBGEMM: for x86 machines without numba.

    It fills K up to a multiple of 512 with zeros, so its memory can be nearly twice the weights'.
    """

    def __init__(self, parts: Sequence[torch.Tensor], bias: torch.Tensor | None = None) -> None:
        bias = None if bias is None else bias.float()
        weight = torch.cat([part.float() for part in parts])
        self.packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self.packed)
        return y


def half_linear() -> MakeLinear | None:
    """What makes linear layers in 16 bits here, best first; None where nothing does."""
    try:
        from llmlab.kernels.cpu_weights import Products

        products = Products()
        return lambda parts, bias: HalfLinear(products, parts, bias)
    except (ImportError, RuntimeError):
        pass
    try:
        PackedLinear([torch.zeros(8, 8)])(torch.zeros(1, 8))
    except (RuntimeError, AttributeError, NotImplementedError):
        return None
    return PackedLinear

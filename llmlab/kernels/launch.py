"""How a kernel is started, and the one product that also works in the interpreter.

A launcher builds a `Launch`: kernel, grid, arguments, constants, warps, stages. `run()` starts it;
`aot.py` compiles the very same `Launch` for a chip that is not there. So what is proven by
compiling is what the engine runs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl

# Triton reads the flag when a kernel is decorated, so it is fixed at import here too.
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"))


@dataclass(frozen=True)
class Launch:
    """One kernel call. `args` are runtime values by name, `constants` the tl.constexpr ones."""

    kernel: Any
    grid: tuple[int, ...]
    args: dict[str, Any]
    constants: dict[str, Any]
    num_warps: int = 4
    num_stages: int = 1

    def run(self) -> None:
        """Start it on the current stream. A grid without programs starts nothing."""
        if 0 in self.grid:
            return
        self.kernel[self.grid](
            **self.args,
            **self.constants,
            num_warps=self.num_warps,
            num_stages=self.num_stages,
            enable_fp_fusion=True,  # its default changes between Triton versions
        )


def interpreted() -> bool:
    """True when the kernels run in Triton's interpreter on the CPU."""
    return bool(INTERPRETED.value)


def next_power_of_2(n: int) -> int:
    """The smallest power of two >= n (n >= 1): Triton's tiles have such sides."""
    return 1 << (n - 1).bit_length()


def cdiv(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


@lru_cache
def capability(device: torch.device) -> int:
    """Compute capability as one number, 90 for sm_90; the interpreter counts as 80."""
    if device.type != "cuda":
        return 80
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


@lru_cache
def num_sms(device: torch.device) -> int:
    """Streaming multiprocessors of the device: how many programs run side by side at least."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def require_last_stride_1(name: str, x: torch.Tensor) -> None:
    """Refuse a tensor whose last dimension is not contiguous: kernels read rows by 16 bytes."""
    if x.shape[-1] > 1 and x.stride(-1) != 1:
        raise ValueError(
            f"{name}.stride(-1) = {x.stride(-1)}: must be 1; call {name}.contiguous() first"
        )


@triton.jit
def dot(a, b, acc):
    """acc + a @ b, summed in float32.

    float32 inputs are multiplied as float32, not TF32. The interpreter multiplies the bit patterns
    of bfloat16 (triton-lang/triton#11584), so there the inputs are widened first.
    """
    if INTERPRETED:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee", out_dtype=tl.float32)


@triton.jit
def empty_kernel():
    """Nothing: what a launch itself costs."""
    return

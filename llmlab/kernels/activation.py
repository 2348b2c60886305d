"""silu(gate) * up, the middle of a gated MLP (Shazeer 2020), from one [T, 2 I] product."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from llmlab.kernels.launch import Launch, cdiv, require_last_stride_1


def silu_mul_spec(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up [T, 2 I] = [gate | up]; returns [T, I] float64."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    return gate * gate.sigmoid() * up


@triton.jit
def silu_mul_kernel(gate_up, out, gate_up_stride, out_stride, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = i < size
    at = gate_up + row * gate_up_stride + i
    gate = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(at + size, mask=mask, other=0.0).to(tl.float32)
    y = gate * tl.sigmoid(gate) * up
    tl.store(out + row * out_stride + i, y.to(out.dtype.element_ty), mask=mask)


def silu_mul_launch(gate_up: torch.Tensor, out: torch.Tensor, block: int = 1024) -> Launch:
    """One program a row and 1024 columns: 8 values a thread, 16 bytes in half precision."""
    size = out.shape[1]
    args = {
        "gate_up": gate_up,
        "out": out,
        "gate_up_stride": gate_up.stride(0),
        "out_stride": out.stride(0),
        "size": size,
    }
    grid = (out.shape[0], cdiv(size, block))
    return Launch(silu_mul_kernel, grid, args, {"BLOCK": block}, num_warps=4)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up [T, 2 I] = [gate | up]; returns silu(gate) * up, [T, I], computed in float32."""
    if gate_up.shape[-1] % 2:
        raise ValueError(f"gate_up.shape[-1] = {gate_up.shape[-1]}: must be even")
    require_last_stride_1("gate_up", gate_up)
    shape = (gate_up.shape[0], gate_up.shape[1] // 2)
    out = torch.empty(shape, dtype=gate_up.dtype, device=gate_up.device)
    silu_mul_launch(gate_up, out).run()
    return out

"""RMSNorm, with the residual added on the way (Zhang and Sennrich 2019).

    x, residual -> residual + x -> normalised          one read of each, one write of each

A layer adds its output to the residual stream and normalises the sum. Done apart, that is two
kernels and the sum travels through memory once more.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from llmlab.kernels.launch import Launch, next_power_of_2, require_last_stride_1


def rms_norm_spec(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(normalised, sum) in float64: sum = x (+ residual), normalised = sum / rms(sum) * weight."""
    total = x.double() if residual is None else x.double() + residual.double()
    scale = (total.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
    return total * scale * weight.double(), total


@triton.jit
def rms_norm_kernel(
    x,
    residual,
    weight,
    out,
    x_stride,
    residual_stride,
    out_stride,
    eps,
    E: tl.constexpr,
    E_PAD: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, E_PAD)
    mask = e < E
    total = tl.load(x + row * x_stride + e, mask=mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        at = residual + row * residual_stride + e
        total += tl.load(at, mask=mask, other=0.0).to(tl.float32)
        tl.store(at, total.to(residual.dtype.element_ty), mask=mask)
    scale = tl.rsqrt(tl.sum(total * total, 0) / E + eps)
    w = tl.load(weight + e, mask=mask, other=0.0).to(tl.float32)
    y = total * scale * w
    tl.store(out + row * out_stride + e, y.to(out.dtype.element_ty), mask=mask)


def rms_norm_launch(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None = None,
) -> Launch:
    """One program a row of x [T, E]; `residual` [T, E] is replaced by the sum."""
    size = x.shape[1]
    stream = x if residual is None else residual
    args = {
        "x": x,
        "residual": stream,
        "weight": weight,
        "out": out,
        "x_stride": x.stride(0),
        "residual_stride": stream.stride(0),
        "out_stride": out.stride(0),
        "eps": eps,
    }
    constants = {"E": size, "E_PAD": next_power_of_2(size), "HAS_RESIDUAL": residual is not None}
    # 16 bytes a thread and load: 8 values of a half-precision row.
    warps = max(1, min(8, next_power_of_2(size) // 256))
    return Launch(rms_norm_kernel, (x.shape[0],), args, constants, warps)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """Normalise x [T, E] (plus `residual`, which is updated in place); returns [T, E].

    Sums are float32. A last dimension that is not contiguous is a ValueError, never wrong values.
    """
    for name, t in (("x", x), ("weight", weight), ("residual", residual)):
        if t is not None:
            require_last_stride_1(name, t)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rms_norm_launch(x, weight, out, eps, residual).run()
    return out

"""Rotary position embedding (Su et al. 2021), pairs (i, i + D/2) as Hugging Face stores them.

    x = [ first half | second half ]      angle_i = position * theta^(-2 i / D)
    first'  = first * cos - second * sin
    second' = second * cos + first * sin

The table holds one row a position, [cos (D/2) | sin (D/2)] in float32. D need not be a power of
two: the sine starts at D/2, not at the middle of the padded tile.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from llmlab.kernels.launch import Launch, cdiv, next_power_of_2, require_last_stride_1


def rope_table(
    max_positions: int, dim: int, theta: float, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """[L, D] float32, row p = [cos | sin] of position p, angles in float64."""
    powers = torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim
    angles = torch.arange(max_positions, device=device)[:, None] * theta**-powers  # [L, D / 2]
    return torch.cat((angles.cos(), angles.sin()), dim=-1).float()


def rope_spec(x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """x [T, H, D] rotated by its positions [T], in float64."""
    half = x.shape[-1] // 2
    cos, sin = table[positions.long()].double().split(half, dim=-1)  # [T, D / 2]
    first, second = x.double().split(half, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


@triton.jit
def rotate(first, second, cos, sin):
    """The two halves after rotation."""
    return first * cos - second * sin, second * cos + first * sin


@triton.jit(do_not_specialize=["positions", "num_tokens"])
def rope_kernel(
    x,
    positions,
    table,
    num_tokens,
    x_stride_t,
    x_stride_h,
    table_stride,
    HALF: tl.constexpr,
    HALF_PAD: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    t = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    i = tl.arange(0, HALF_PAD)[None, :]
    mask = (t < num_tokens)[:, None] & (i < HALF)  # [BLOCK_T, D / 2]
    position = tl.load(positions + t, mask=t < num_tokens, other=0).to(tl.int64)
    row = table + position[:, None] * table_stride + i
    cos = tl.load(row, mask=mask, other=0.0)
    sin = tl.load(row + HALF, mask=mask, other=0.0)
    at = x + t[:, None] * x_stride_t + head * x_stride_h + i
    first = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(at + HALF, mask=mask, other=0.0).to(tl.float32)
    first, second = rotate(first, second, cos, sin)
    tl.store(at, first.to(x.dtype.element_ty), mask=mask)
    tl.store(at + HALF, second.to(x.dtype.element_ty), mask=mask)


def rows_and_warps(num_tokens: int, dim: int) -> tuple[int, int]:
    """(tokens a program, warps): 1 token while programs are few, 16 once there is enough work.

    16 tokens let every thread move 16 bytes at a time (8 half-precision values of each half).
    """
    if num_tokens < 256:
        return 1, 1
    return 16, max(1, 16 * next_power_of_2(dim // 2) // 256)


def rope_launch(x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> Launch:
    """One program a head and BLOCK_T tokens of x [T, H, D], in place."""
    num_tokens, heads, dim = x.shape
    block, warps = rows_and_warps(num_tokens, dim)
    args = {
        "x": x,
        "positions": positions,
        "table": table,
        "num_tokens": num_tokens,
        "x_stride_t": x.stride(0),
        "x_stride_h": x.stride(1),
        "table_stride": table.stride(0),
    }
    constants = {"HALF": dim // 2, "HALF_PAD": next_power_of_2(dim // 2), "BLOCK_T": block}
    grid = (cdiv(num_tokens, block), heads)
    return Launch(rope_kernel, grid, args, constants, num_warps=warps)


def check_table(table: torch.Tensor, dim: int) -> None:
    """The table must rotate the whole head: partial rotary embedding is not done here."""
    if table.shape[-1] != dim or dim % 2:
        raise ValueError(
            f"table.shape[-1] = {table.shape[-1]}: must be the head dim {dim}, an even number "
            "(rotating only part of a head is not supported)"
        )


def rope(x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> None:
    """Rotate x [T, H, D] in place by `positions` [T] with `table` from `rope_table`."""
    check_table(table, x.shape[-1])
    require_last_stride_1("x", x)
    require_last_stride_1("table", table)
    rope_launch(x, positions, table).run()

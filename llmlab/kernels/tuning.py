"""Block sizes, warps and stages, by architecture: small tables, stated reasons, no autotuning.

Chosen by what the compiler makes of them (registers, spills, shared memory, matrix instruction;
`llmlab kernels`), not by timing: nothing here was measured on a card.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmlab.kernels.launch import cdiv, next_power_of_2


@dataclass(frozen=True)
class Tiles:
    """A tile of block_m query rows by block_n keys; num_stages tiles of keys in flight."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


# sm_90's wgmma wants at least 64 rows for 4 warps, and sm_100 keeps accumulators outside the
# registers. On sm_80 a thread of 4 warps cannot hold a 128-row tile without spilling.
_PREFILL = {
    (80, 64): Tiles(64, 64, 4, 3),
    (80, 128): Tiles(128, 64, 8, 3),
    (90, 64): Tiles(128, 64, 4, 3),
    (90, 128): Tiles(128, 64, 8, 3),
    (100, 64): Tiles(128, 64, 4, 3),
    (100, 128): Tiles(128, 64, 8, 3),
}

MIN_SPLIT = 256  # tokens: below that the merge costs more than the split gains
MAX_SPLITS = 64
PROGRAMS_PER_SM = 3  # decode programs wanted per SM, to hide the latency of page lookups


def prefill_tiles(arch: int, head_dim: int, element_size: int = 2) -> Tiles:
    """Tiles of the prefill kernel on sm_<arch>. float32 (a test dtype) takes small ones."""
    if element_size > 2:
        return Tiles(32, 32, 4, 1)
    generation = 100 if arch >= 100 else 90 if arch >= 90 else 80
    return _PREFILL[generation, 64 if head_dim <= 64 else 128]


def decode_tiles(arch: int, group: int, head_dim: int, element_size: int = 2) -> Tiles:
    """Tiles of the decode kernel: block_m holds the G query heads of one key head.

    A product of fewer than 16 rows is padded by the hardware, not by us: 4 rows take the fewest
    registers. Head dims that are padded need 8, with 4 the compiler spills. Decode waits for
    memory, so tiles in flight matter more than the product.
    """
    padded = head_dim != next_power_of_2(head_dim)
    rows = max(8 if padded else 4, next_power_of_2(group))
    if element_size > 2:
        return Tiles(max(16, rows), 32, 4, 1)
    return Tiles(rows, 64, 4, 3)


def num_splits(requests: int, kv_heads: int, max_context: int, sms: int) -> int:
    """Into how many programs to split one request's context, a power of two.

    Enough that requests * kv_heads * splits fill the SMs, but no split shorter than MIN_SPLIT
    tokens. It depends on the batch's shape alone, so a captured graph keeps it; how long a split
    really is, the kernel finds from the context on the device.
    """
    wanted = cdiv(PROGRAMS_PER_SM * sms, max(1, requests * kv_heads))
    room = max(1, max_context // MIN_SPLIT)
    largest = min(wanted, room, MAX_SPLITS)
    return 1 << (largest.bit_length() - 1)

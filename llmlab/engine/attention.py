"""Attention over a paged cache, in plain torch.

Any callable with `paged_attention`'s signature can take its place: `Engine(model, attention=f)`.
It must read no slot beyond a request's context: unwritten memory may hold NaN, and 0 * NaN = NaN.

Requests that decode (one query) are computed together in groups of similar context length, the
others one by one. What depends only on the batch is worked out once and kept in `batch.memo` for
the other layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from llmlab.engine.batch import Batch

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Batch], torch.Tensor]

# Slots of padding that cost about as much as the calls of one more group.
PADDING_FREE = 256
# Most slots gathered at once: bounds the memory of a step, and what is gathered stays in cache.
GATHER_SLOTS = 16384


@dataclass(slots=True)
class Decodes:
    """R requests with one query each, padded to the longest context C among them.

    tokens [R] int64: rows of q; slots [R * C]: where their keys lie, padding repeats the first
    slot of the request, whose content is finite. mask [R, 1, 1, C]: 0 or -inf; None: no padding.
    """

    tokens: torch.Tensor
    slots: torch.Tensor
    mask: torch.Tensor | None


@dataclass(slots=True)
class Chunk:
    """One request with n > 1 queries at tokens `start` .. `start + n - 1` over C positions.

    slots [C]; mask [n, C]: True where a query may look; None: the whole prompt at once, n = C.
    """

    start: int
    n: int
    slots: torch.Tensor
    mask: torch.Tensor | None


def paged_attention(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, batch: Batch
) -> torch.Tensor:
    """Causal attention of T query tokens over their own requests' blocks.

    q [T, Hq, D]; k_cache, v_cache [N, B, Hkv, D], this step's keys and values already written;
    returns [T, Hq, D]. Query token i of a request with n query tokens and context c stands at
    position c - n + i and sees positions 0 .. c - n + i. Scores are scaled by 1 / sqrt(D). Query
    head h reads key head h // (Hq / Hkv). A cache in 16 bits is widened to q's type as it is read.
    """
    if "paged_attention" not in batch.memo:
        batch.memo["paged_attention"] = layout(batch, k_cache.shape[1], q.dtype)
    groups, chunks = batch.memo["paged_attention"]
    k, v = k_cache.flatten(0, 1), v_cache.flatten(0, 1)  # [N * B, Hkv, D]
    if not chunks and len(groups) == 1:
        return _decode(q, k, v, groups[0])
    out = torch.empty_like(q)
    for group in groups:
        out[group.tokens] = _decode(q[group.tokens], k, v, group)
    for chunk in chunks:
        rows = slice(chunk.start, chunk.start + chunk.n)
        out[rows] = attend_chunk(q[rows], k[chunk.slots], v[chunk.slots], chunk.mask)
    return out


def _decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: Decodes) -> torch.Tensor:
    """q [R, Hq, D], one query a request; k, v [slots, Hkv, D], C slots a request; like q."""
    rows, heads, dim = q.shape
    kv_heads = k.shape[1]
    # Query heads that share a key head are rows of one product.
    q = q.view(rows, kv_heads, heads // kv_heads, dim)  # [R, Hkv, G, D]
    k, v = (
        pool.index_select(0, group.slots).to(q.dtype).view(rows, -1, kv_heads, dim).transpose(1, 2)
        for pool in (k, v)
    )  # [R, Hkv, C, D]
    mask = group.mask
    if mask is not None:
        mask = mask.expand(-1, -1, heads // kv_heads, -1)  # [R, 1, G, C]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).reshape(rows, heads, dim)


def attend_chunk(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """q [n, Hq, D] over k, v [C, Hkv, D], whose last n positions are the queries' own; as q."""
    n, heads, dim = q.shape
    k, v = k.to(q.dtype), v.to(q.dtype)
    kv_heads = k.shape[1]
    group = heads // kv_heads
    q = q.reshape(n, kv_heads, group, dim).permute(1, 2, 0, 3)  # [Hkv, G, n, D]
    k = k.transpose(0, 1)[:, None].expand(-1, group, -1, -1)  # [Hkv, G, C, D], nothing copied
    v = v.transpose(0, 1)[:, None].expand(-1, group, -1, -1)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
    return out.permute(2, 0, 1, 3).reshape(n, heads, dim)  # [n, Hkv, G, D] flattened


def layout(batch: Batch, block_size: int, dtype: torch.dtype) -> tuple[list[Decodes], list[Chunk]]:
    """The batch's requests as groups of decodes and single chunks, with their slots and masks."""
    device = batch.block_table.device
    starts = [0]
    for n in batch.query_lens:
        starts.append(starts[-1] + n)
    decoding = [r for r, n in enumerate(batch.query_lens) if n == 1]
    groups = []
    for rows in similar_lengths(decoding, batch.context_lens):
        contexts = batch.context_lens
        slots, valid = _slots(batch, rows, max(contexts[r] for r in rows), block_size)
        mask = None
        if not bool(valid.all()):
            mask = torch.zeros(valid.shape, dtype=dtype, device=device)
            mask = mask.masked_fill_(~valid, -torch.inf)
            mask = mask[:, None, None, :]  # [R, 1, 1, C]
        tokens = torch.tensor([starts[r] for r in rows], device=device)
        groups.append(Decodes(tokens, slots.flatten(), mask))
    chunks = [
        chunk_of(batch, r, starts[r], block_size) for r, n in enumerate(batch.query_lens) if n > 1
    ]
    return groups, chunks


def chunk_of(batch: Batch, r: int, start: int, block_size: int) -> Chunk:
    """Request r, whose queries begin at token `start`."""
    n, context = batch.query_lens[r], batch.context_lens[r]
    slots, _ = _slots(batch, [r], context, block_size)
    mask = None
    if n < context:
        mask = torch.ones(n, context, dtype=torch.bool, device=slots.device)
        mask = mask.tril(context - n)
    return Chunk(start, n, slots[0], mask)


def _slots(
    batch: Batch, rows: Sequence[int], width: int, block_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Slots [R, width] of positions 0 .. width - 1 of these requests, and which are real."""
    device = batch.block_table.device
    positions = torch.arange(width, device=device)
    contexts = torch.tensor([batch.context_lens[r] for r in rows], device=device)
    valid = positions < contexts[:, None]
    # Padding looks at position 0: it is masked, but what is read there must be finite.
    positions = torch.where(valid, positions, 0)
    table = batch.block_table[torch.tensor(rows, device=device)].long()
    blocks = table.gather(1, positions // block_size)
    return blocks * block_size + positions % block_size, valid


def similar_lengths(rows: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """Groups of rows whose padding to the group's longest is small, each in order.

    Longest first; a row that would bring the padding over an eighth of the real slots (and over
    PADDING_FREE), or the group over GATHER_SLOTS, begins a new group.
    """
    groups: list[list[int]] = []
    longest = padding = real = 0
    for row in sorted(rows, key=lambda r: -lengths[r]):
        more = longest - lengths[row]
        ragged = padding + more > max(PADDING_FREE, (real + lengths[row]) // 8)
        if not groups or ragged or (len(groups[-1]) + 1) * longest > GATHER_SLOTS:
            groups.append([])
            longest, padding, real, more = lengths[row], 0, 0, 0
        groups[-1].append(row)
        padding, real = padding + more, real + lengths[row]
    return [sorted(group) for group in groups]

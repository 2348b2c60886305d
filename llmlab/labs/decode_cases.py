"""Batches on which a decode kernel goes wrong in the usual ways, and what those ways compute.

The first and the last block belong to nobody. What no token owns is NaN, so a lane that should have
been masked shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True)
class DecodeCase:
    """One query a request over a paged cache; tiles of `block_n` keys.

    q [R, Hq, D]; k_cache, v_cache [N, B, Hkv, D]; block_table [R, M]; context_len [R].
    """

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_table: torch.Tensor
    context_len: torch.Tensor
    block_n: int

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Copies in the order of the launcher's arguments."""
        whole = (self.q, self.k_cache, self.v_cache, self.block_table, self.context_len)
        return tuple(tensor.clone() for tensor in whole)

    def clean(self) -> DecodeCase:
        """The same with 0 in every slot that no token owns."""
        k, v = self.k_cache.nan_to_num(0.0), self.v_cache.nan_to_num(0.0)
        return replace(self, k_cache=k, v_cache=v)

    def to(self, device: str) -> DecodeCase:
        """A copy on another device."""
        q, k, v, table, lengths = (t.to(device) for t in self.tensors())
        return DecodeCase(q, k, v, table, lengths, self.block_n)

    def __str__(self) -> str:
        _, page, kv_heads, dim = self.k_cache.shape
        kind = "" if self.q.dtype == torch.float32 else f", {str(self.q.dtype)[6:]}"
        return (
            f"contexts {self.context_len.tolist()}, blocks of {page}, tiles of {self.block_n}, "
            f"{self.q.shape[1]} query heads, {kv_heads} KV heads, head_dim {dim}{kind}"
        )


def make_case(
    contexts: list[int],
    page: int,
    heads: int,
    kv_heads: int,
    block_n: int,
    *,
    dim: int = 16,
    dtype: torch.dtype = torch.float32,
    loud: float = 1.0,
    seed: int = 0,
) -> DecodeCase:
    """Random keys on blocks in no order. `loud` multiplies the queries: scores grow with it."""
    gen = torch.Generator().manual_seed(seed)
    counts = [-(-context // page) for context in contexts]
    total = sum(counts) + 2
    order = (1 + torch.randperm(total - 2, generator=gen)).tolist()
    k, v = (torch.full((total, page, kv_heads, dim), torch.nan, dtype=dtype) for _ in range(2))
    table = torch.zeros(len(contexts), max(counts) + 1, dtype=torch.int32)
    for r, (context, count) in enumerate(zip(contexts, counts, strict=True)):
        blocks = [order.pop() for _ in range(count)]
        table[r, :count] = torch.tensor(blocks)
        for cache in (k, v):
            new = torch.randn(count * page, kv_heads, dim, generator=gen).to(dtype)
            new[context:] = torch.nan
            cache[blocks] = new.view(count, page, kv_heads, dim)  # whole blocks
    q = (loud * torch.randn(len(contexts), heads, dim, generator=gen)).to(dtype)
    return DecodeCase(q, k, v, table, torch.tensor(contexts, dtype=torch.int32), block_n)


def _cases() -> list[DecodeCase]:
    return [
        make_case([6, 1], 4, 2, 2, 8),
        make_case([4, 8, 3], 2, 4, 2, 4, seed=1),  # whole blocks, more than one tile
        make_case([15, 16, 17], 8, 4, 4, 16, seed=2),  # either side of a block's and a tile's end
        make_case([33, 2], 5, 6, 2, 8, seed=3),  # three query heads a KV head, odd blocks
        make_case([7, 12], 1, 2, 1, 16, seed=4),  # one slot a block
        make_case([40, 24], 16, 2, 1, 8, loud=250.0, seed=5),  # exp of a score overflows
        make_case([31, 64], 16, 2, 1, 32, dim=64, dtype=torch.float16, loud=8.0, seed=6),
    ]


CASES = tuple(_cases())


def reference(
    case: DecodeCase,
    *,
    slots: Callable[[DecodeCase, int, int], torch.Tensor] | None = None,
    tail: Callable[[int, int, int], int] | None = None,
    power: float = -0.5,
    interleaved: bool = False,
    ungrouped: bool = False,
    base: float | None = None,
    divide: bool = True,
    dead_lanes: bool = False,
    keeps_acc: bool = False,
    keeps_sum: bool = False,
) -> torch.Tensor:
    """Dense attention in float64, [R, Hq, D]; each keyword makes one usual mistake.

    slots(case, r, context): where the keys lie; tail(context, page, block_n): how many are seen.
    """
    _, page, kv_heads, dim = case.k_cache.shape
    heads = case.q.shape[1]
    of = torch.arange(heads)
    of = of % kv_heads if interleaved else of // (heads // kv_heads)
    out = torch.zeros(case.q.shape, dtype=torch.float64)
    for r, context in enumerate(case.context_len.tolist()):
        seen = context if tail is None else tail(context, page, case.block_n)
        at = (slots or own_slots)(case, r, seen)
        rows = at[:, None] * kv_heads + of  # [C, Hq], rows of head_dim values
        if ungrouped:
            rows = at[:, None] * kv_heads + torch.arange(heads)
        rows = rows.clamp(max=case.k_cache[..., 0].numel() - 1)
        pools = (case.k_cache.flatten(0, 2), case.v_cache.flatten(0, 2))  # [N * B * Hkv, D]
        k, v = (pool[rows].double() for pool in pools)  # [C, Hq, D]
        scores = torch.einsum("hd,chd->hc", case.q[r].double(), k) * dim**power  # [Hq, C]
        if base is not None:
            scores = scores * torch.tensor(base).double().log()
        if dead_lanes:
            lanes = -(-seen // case.block_n) * case.block_n
            scores = torch.nn.functional.pad(scores, (0, lanes - seen))
            v = torch.nn.functional.pad(v, (0, 0, 0, 0, 0, lanes - seen))
        if keeps_acc or keeps_sum:
            out[r] = unshrunk(scores, v, case.block_n, keeps_acc, keeps_sum)
            continue
        weights = (scores - scores.amax(1, keepdim=True)).exp()
        total = weights.sum(1, keepdim=True) if divide else 1.0
        out[r] = torch.einsum("hc,chd->hd", weights / total, v)
    return out


def largest_score(case: DecodeCase) -> float:
    """A bound of the scores' size: the longest query times the longest key, scaled."""
    k = case.k_cache.nan_to_num(0.0).double()
    return float(case.q.double().norm(dim=2).max() * k.norm(dim=3).max() / case.q.shape[2] ** 0.5)


def own_slots(case: DecodeCase, r: int, seen: int) -> torch.Tensor:
    """Slots of positions 0 .. seen - 1, through the block table."""
    page, position = case.k_cache.shape[1], torch.arange(seen)
    return case.block_table[r].long()[position // page] * page + position % page


def _no_table(case: DecodeCase, r: int, seen: int) -> torch.Tensor:
    return torch.arange(seen) % case.k_cache[:, :, 0, 0].numel()


def _first_entry(case: DecodeCase, r: int, seen: int) -> torch.Tensor:
    page = case.k_cache.shape[1]
    return int(case.block_table[r, 0]) * page + torch.arange(seen) % page


def _first_row(case: DecodeCase, r: int, seen: int) -> torch.Tensor:
    page, position = case.k_cache.shape[1], torch.arange(seen)
    columns = (position // page).clamp(max=case.block_table.shape[1] - 1)
    return case.block_table[0].long()[columns] * page + position % page


def unshrunk(
    scores: torch.Tensor, v: torch.Tensor, block_n: int, keeps_acc: bool, keeps_sum: bool
) -> torch.Tensor:
    """Tiles folded without scaling what was summed before: scores [H, C], v [C, H, D]."""
    largest = torch.full(scores.shape[:1], -torch.inf, dtype=torch.float64)
    total = torch.zeros_like(largest)
    acc = torch.zeros(v.shape[1:], dtype=torch.float64)
    for begin in range(0, scores.shape[1], block_n):
        tile = scores[:, begin : begin + block_n]
        new = torch.maximum(largest, tile.amax(1))
        shrink, p = (largest - new).exp(), (tile - new[:, None]).exp()  # [H], [H, block_n]
        total = total * (1.0 if keeps_sum else shrink) + p.sum(1)
        acc = acc * (1.0 if keeps_acc else shrink[:, None])  # [H, D]
        acc = acc + torch.einsum("hc,chd->hd", p, v[begin : begin + block_n])
        largest = new
    return acc / total[:, None]


DEAD_LANES = "counts masked lanes: with other=0 their score is 0, it has to be -inf"

# What each usual mistake computes, and how it is told. The first that fits is said.
MISTAKES: tuple[tuple[dict[str, object], str], ...] = (
    ({"power": 0.0}, "leaves out the scale, 1 / sqrt(D)"),
    ({"power": -1.0}, "scales by 1 / D: it has to be 1 / sqrt(D)"),
    (
        {"interleaved": True},
        "gives query head h the KV head h % Hkv: heads share in groups, h // G",
    ),
    ({"ungrouped": True}, "takes query head h for a KV head: there are fewer of them, use h // G"),
    ({"slots": _no_table}, "reads slot p for position p: the block table says where p lies"),
    (
        {"slots": _first_entry},
        "looks up the table's first entry only: position p is in entry p // PAGE",
    ),
    (
        {"slots": _first_row},
        "reads row 0 of the block table for every request: request r has row r",
    ),
    ({"tail": lambda c, page, n: max(1, c // page * page)}, "drops the last, partly filled block"),
    ({"tail": lambda c, page, n: max(1, c // n * n)}, "drops the last, partly filled tile"),
    ({"tail": lambda c, page, n: min(c, n)}, "folds the first tile only"),
    (
        {"tail": lambda c, page, n: max(1, c - 1)},
        "leaves out the newest key: positions 0 .. c - 1 count",
    ),
    ({"dead_lanes": True}, DEAD_LANES),
    ({"base": 2.0}, "takes exp2 of plain scores: multiply them by log2(e) = 1.4427 first"),
    ({"divide": False}, "does not divide by the sum of the weights at the end"),
    (
        {"keeps_acc": True, "keeps_sum": True},
        "never shrinks what it has summed when a larger score arrives",
    ),
    ({"keeps_acc": True}, "shrinks the sum but not acc when a larger score arrives"),
    ({"keeps_sum": True}, "shrinks acc but not the sum when a larger score arrives"),
)


def near(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal within the precision of a's dtype."""
    rtol, atol = (1e-4, 2e-5) if a.dtype == torch.float32 else (1e-3, 5e-4)
    return torch.allclose(a.double(), b.double(), rtol=rtol, atol=atol)


def mistake(case: DecodeCase, answer: torch.Tensor) -> str | None:
    """The usual mistake that gives this answer, by its finite heads; None if none does."""
    finite = answer.isfinite().all(2)  # [R, Hq]
    if not bool(finite.any()):
        return None
    for flags, said in MISTAKES:
        if near(answer[finite], reference(case, **flags)[finite]):  # type: ignore[arg-type]
            return said
    return None

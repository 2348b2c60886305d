"""Paged attention beside torch's on contiguous keys, and beside FlashInfer where it is installed.

Each cell is first held against float64 on some of its rows; a wrong kernel is not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from llmlab.bench.gpu_timing import Bench, measure, relative_error, rotations, within
from llmlab.kernels.launch import cdiv
from llmlab.kernels.paged_attention import paged_attention, paged_attention_spec

Row = dict[str, Any]
PAGE = 16


@dataclass(frozen=True)
class Heads:
    """A model's attention: query heads, heads of keys and values, and their dimension."""

    name: str
    q: int
    kv: int
    dim: int


SHAPES = (
    Heads("Qwen3-0.6B", 16, 8, 128),
    Heads("Llama-3.1-8B", 32, 8, 128),
    Heads("Llama-3.2-1B", 32, 8, 64),
)
TINY = (Heads("tiny", 4, 2, 64),)
DECODES = [(b, s) for s in (512, 4096, 32768) for b in (1, 8, 32, 128, 256)]
PREFILLS = [(512, 0), (4096, 0), (8192, 0), (512, 4096), (2048, 8192)]


@dataclass
class Cell:
    """B requests of one size over a shared cache; each table names a set of pages of its own."""

    heads: Heads
    q: list[torch.Tensor]
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    start: torch.Tensor
    context: torch.Tensor
    tables: list[torch.Tensor]
    decode: bool

    def call(self, i: int, out: torch.Tensor | None = None) -> torch.Tensor:
        """Our kernel on input set i: [T, Hq, D]."""
        return paged_attention(
            self.q[i],
            self.k_cache,
            self.v_cache,
            self.start,
            self.context,
            self.tables[i],
            num_decodes=len(self.context) if self.decode else 0,
            out=out,
        )

    def contiguous(self, i: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q [B, Hq, n, D] and keys, values [B, Hkv, C, D] of set i, gathered."""
        batch, length = len(self.context), int(self.context[0])
        q = self.q[i].view(batch, -1, self.heads.q, self.heads.dim).transpose(1, 2).contiguous()
        pages = self.tables[i].long()
        k, v = (  # pages side by side: [B, C, Hkv, D], then heads first
            cache[pages].flatten(1, 2)[:, :length].transpose(1, 2).contiguous()
            for cache in (self.k_cache, self.v_cache)
        )
        return q, k, v

    def error(self) -> float:
        """Relative error of the last 16 queries of the first and the last request, in float64."""
        result, worst = self.call(0), 0.0
        for r in {0, len(self.context) - 1}:
            first, last = int(self.start[r]), int(self.start[r + 1])
            first = max(first, last - 16)
            start = torch.tensor([0, last - first], dtype=torch.int32)
            spec = paged_attention_spec(
                self.q[0][first:last],
                self.k_cache,
                self.v_cache,
                start,
                self.context[r : r + 1],
                self.tables[0][r : r + 1],
            )
            worst = max(worst, relative_error(result[first:last], spec))
        return worst


def make_cell(bench: Bench, heads: Heads, batch: int, queries: int, context: int) -> Cell:
    """Random keys on randomly ordered pages, as many disjoint sets as defeat the L2."""
    pages = cdiv(context, PAGE)
    size = 2 * batch * pages * PAGE * heads.kv * heads.dim * 2
    sets = 1 if bench.tiny else rotations(size)
    total = sets * batch * pages
    k, v = (bench.randn(total, PAGE, heads.kv, heads.dim) for _ in range(2))
    order = torch.randperm(total, device=bench.device, dtype=torch.int32)
    return Cell(
        heads,
        [bench.randn(batch * queries, heads.q, heads.dim) for _ in range(sets)],
        k,
        v,
        torch.arange(batch + 1, dtype=torch.int32, device=bench.device) * queries,
        torch.full((batch,), context, dtype=torch.int32, device=bench.device),
        list(order.view(sets, batch, pages)),  # [B, pages] a set
        queries == 1,
    )


def kv_bytes(heads: Heads, batch: int, context: int, element: int = 2) -> int:
    """Keys and values once, queries in and answers out."""
    kv = 2 * batch * context * heads.kv * heads.dim
    return (kv + 2 * batch * heads.q * heads.dim) * element


def causal_flops(heads: Heads, batch: int, queries: int, context: int) -> int:
    """2 products of 2 D each for every (query, visible key), counted exactly."""
    visible = queries * context - queries * (queries - 1) // 2
    return 4 * batch * heads.q * heads.dim * visible


def run_decode(bench: Bench, peer: str = "sdpa") -> Iterator[Row]:
    """Paged decode as a share of the card's read rate."""
    cells = [(2, 40), (3, 100)] if bench.tiny else DECODES
    # Largest question first: the target speaks of 32 requests x 4k and more.
    cells = sorted(cells, key=lambda c: (c[0] * c[1] < 32 * 4096, c[0] * c[1]))
    for heads in TINY if bench.tiny else SHAPES:
        for batch, context in cells:
            element = torch.empty((), dtype=bench.dtype).element_size()
            moved = kv_bytes(heads, batch, context, element)
            row = {"kernel": "decode", "shape": heads.name, "batch": batch, "context": context}
            if bench.is_over() or 2.5 * moved > bench.free_bytes():
                yield {**row, "status": "no time" if bench.is_over() else "no memory"}
                continue
            cell = make_cell(bench, heads, batch, 1, context)
            yield _measured(bench, row, cell, peer, "read", moved)


def run_prefill(bench: Bench) -> Iterator[Row]:
    """Chunked prefill attention as a share of the card's matrix rate."""
    cells = [(8, 0), (8, 24)] if bench.tiny else PREFILLS
    for queries, before in cells:
        for heads in TINY if bench.tiny else SHAPES:
            context = before + queries
            row = {"kernel": "prefill", "shape": heads.name, "queries": queries, "context": context}
            if bench.is_over():
                yield {**row, "status": "no time"}
                continue
            cell = make_cell(bench, heads, 1, queries, context)
            work = causal_flops(heads, 1, queries, context)
            yield _measured(bench, row, cell, "sdpa" if before == 0 else None, "gemm", work)


def _measured(
    bench: Bench, row: Row, cell: Cell, peer: str | None, ceiling: str, amount: float
) -> Row:
    error = cell.error()
    row = {**row, "error": error}
    if not within(error, bench.dtype):
        return {**row, "status": "wrong: not timed"}
    outs = [torch.empty_like(q) for q in cell.q]
    rivals: dict[str, list[Callable[[], Any]]] = {
        "ours": [partial(cell.call, i, out) for i, out in enumerate(outs)]
    }
    if peer == "sdpa":
        rivals["sdpa"] = [_sdpa(cell, i) for i in range(len(cell.q))]
    elif peer == "flashinfer":
        rivals["flashinfer"] = _flashinfer(bench, cell)
    timings = measure(bench, rivals)
    ours = timings["ours"]
    row |= {"status": "ok", **ours.as_row(), "rate": amount / ours.median}
    row["share"] = bench.share(ceiling, amount / ours.median)
    for name, timing in timings.items():
        if name != "ours":
            row[f"{name}_us"] = timing.median * 1e6
            row[f"{name}_speed"] = timing.median / ours.median
    return row


def _sdpa(cell: Cell, i: int) -> Callable[[], Any]:
    """torch's attention on the same tokens, contiguous: no paging to pay for."""
    q, k, v = cell.contiguous(i)
    causal = not cell.decode
    return partial(F.scaled_dot_product_attention, q, k, v, is_causal=causal, enable_gqa=True)


def flashinfer_installed() -> bool:
    """Whether FlashInfer can be imported here."""
    try:
        import flashinfer  # type: ignore[import-not-found]  # noqa: F401
    except Exception:  # a broken build raises anything
        return False
    return True


def _flashinfer(bench: Bench, cell: Cell) -> list[Callable[[], Any]]:
    import flashinfer

    batch, pages = cell.tables[0].shape
    indptr = torch.arange(batch + 1, dtype=torch.int32, device=bench.device) * pages
    last = (cell.context - 1) % PAGE + 1
    calls: list[Callable[[], Any]] = []
    for i, table in enumerate(cell.tables):
        workspace = torch.empty(128 * 2**20, dtype=torch.uint8, device=bench.device)
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            workspace, "NHD", use_tensor_cores=True
        )
        wrapper.plan(
            indptr,
            table.flatten().contiguous(),
            last,
            cell.heads.q,
            cell.heads.kv,
            cell.heads.dim,
            PAGE,
            q_data_type=bench.dtype,
            kv_data_type=bench.dtype,
        )
        calls.append(partial(wrapper.run, cell.q[i], (cell.k_cache, cell.v_cache)))
    return calls


def run_flashinfer(bench: Bench) -> Iterator[Row]:
    """Decode again, taking turns with FlashInfer. It compiles for minutes: a section of its own."""
    if not flashinfer_installed():
        yield {"kernel": "decode", "status": "flashinfer is not installed"}
        return
    yield from run_decode(bench, "flashinfer")

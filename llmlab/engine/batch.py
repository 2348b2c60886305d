"""A step's plan as the flat tensors that a forward pass reads.

No padding between requests: their tokens lie one after the other, `query_start` says where each
begins. A row of `block_table` beyond a request's own blocks is 0 and must not be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from llmlab.sched.plan import StepPlan


@dataclass(slots=True)
class Batch:
    """T tokens of R requests; M is the longest block table, S how many requests get a token.

    input_ids, positions, slots [T] int64: token, its place in the request, its slot in the pool
        (-1 in padding: nothing may be written).
    query_start [R + 1] int32: request r owns tokens query_start[r] .. query_start[r + 1] - 1.
    context_len [R] int32: tokens of request r in the cache after this step's write.
    block_table [R, M] int32: its blocks in order of position.
    sample_rows [S] int64: rows of the T tokens whose logits are wanted.
    query_lens, context_lens: the same lengths as plain lists, for code that loops in Python.
    padded: whether any slot is -1.
    memo: what an attention works out from the batch alone, kept from layer to layer.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    query_start: torch.Tensor
    context_len: torch.Tensor
    block_table: torch.Tensor
    sample_rows: torch.Tensor
    query_lens: list[int]
    context_lens: list[int]
    padded: bool = False
    memo: dict[str, Any] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return self.input_ids.shape[0]

    @property
    def num_requests(self) -> int:
        return self.context_len.shape[0]


def build_batch(plan: StepPlan, block_size: int, *, device: torch.device | str = "cpu") -> Batch:
    """Lay out the plan's tokens: positions start at num_computed_tokens, never at 0."""
    input_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    starts, query_lens, contexts, sample_rows = [0], [], [], []
    for request, n in plan.scheduled:
        first = request.num_computed_tokens
        table = request.block_ids
        for position in range(first, first + n):
            input_ids.append(request.token_at(position))
            positions.append(position)
            slots.append(table[position // block_size] * block_size + position % block_size)
        starts.append(starts[-1] + n)
        query_lens.append(n)
        contexts.append(first + n)
        if first + n == request.num_tokens:
            sample_rows.append(starts[-1] - 1)
    tables = [request.block_ids for request, _ in plan.scheduled]
    return make_batch(
        input_ids, positions, slots, starts, contexts, tables, sample_rows, device=device
    )


def make_batch(
    input_ids: Sequence[int],
    positions: Sequence[int],
    slots: Sequence[int],
    query_start: Sequence[int],
    context_len: Sequence[int],
    block_tables: Sequence[Sequence[int]],
    sample_rows: Sequence[int],
    *,
    device: torch.device | str = "cpu",
) -> Batch:
    """A Batch from plain lists; the ragged block tables become one [R, M] tensor."""
    widest = max(len(table) for table in block_tables)
    rows = [[*table, *[0] * (widest - len(table))] for table in block_tables]

    def long(values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    return Batch(
        input_ids=long(input_ids),
        positions=long(positions),
        slots=long(slots),
        query_start=torch.tensor(query_start, dtype=torch.int32, device=device),
        context_len=torch.tensor(context_len, dtype=torch.int32, device=device),
        block_table=torch.tensor(rows, dtype=torch.int32, device=device),
        sample_rows=long(sample_rows),
        query_lens=[b - a for a, b in pairwise(query_start)],
        context_lens=list(context_len),
        padded=min(slots, default=0) < 0,
    )

"""One step's plan in fixed memory, so that a captured CUDA graph can read it again and again.

All integers of a step lie in one int32 buffer, filled on the host and copied in one go:

    [ input_ids | positions | slots | query_start | context_len | sample_rows | ... | table      ]
         T           T          T         S + 1          S             S               S x W

Two host buffers take turns: while the copy of one may still be on its way, the next step fills the
other. A step is padded to one of a few sizes; padded rows have slot -1 and context 0.

A padded mixed step always has S requests, and says on the device who decodes:

    requests          d0 d1 d2 c0 c1  -  -      3 decodes, 2 chunks, padding
    decode_context     9  4  7  0  0  0  0      for the decode kernel: 0 is nobody's row
    prefill_start      3  3  3  3 11 16 16 16   for the prefill kernel: decodes have no tokens
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from llmlab.engine.batch import Batch
from llmlab.kernels.paged_attention import leading_decodes
from llmlab.sched.plan import StepPlan
from llmlab.sched.request import Request

Ints = npt.NDArray[np.int32]


def graph_sizes(max_num_seqs: int) -> list[int]:
    """Batch sizes to capture: powers of two and the points between, at most a third is padding."""
    sizes = {1, 2, max_num_seqs}
    size = 4
    while size < max_num_seqs:
        sizes |= {size, size + size // 2}
        size *= 2
    return sorted(s for s in sizes if s <= max_num_seqs)


def padded_size(requests: int, sizes: list[int]) -> int | None:
    """The smallest captured size that holds so many requests; None if there is none."""
    return next((size for size in sizes if size >= requests), None)


def is_decode(plan: StepPlan) -> bool:
    """True if every request has one token in this step and gets the next one from it."""
    return all(
        n == 1 and request.num_computed_tokens + 1 == request.num_tokens
        for request, n in plan.scheduled
    )


@dataclass
class _Host:
    """One host buffer. rows: (request, its preemptions, blocks written) of each table row."""

    data: torch.Tensor
    numbers: Ints
    rows: list[tuple[Request, int, int] | None]
    copied: Any = None  # event after the last copy out of it


class StepBuffers:
    """T tokens, S requests and W blocks a request at most; all views are of `device_data`."""

    def __init__(
        self, max_tokens: int, max_requests: int, width: int, device: torch.device | str = "cpu"
    ) -> None:
        self.max_tokens, self.max_requests, self.width = max_tokens, max_requests, width
        self.on_cuda = torch.device(device).type == "cuda"
        sizes = {
            "input_ids": max_tokens,
            "positions": max_tokens,
            "slots": max_tokens,
            "query_start": max_requests + 1,
            "context_len": max_requests,
            "sample_rows": max_requests,
            "decode_context": max_requests,
            "prefill_start": max_requests + 1,
        }
        self._at: dict[str, int] = {}
        end = 0
        for name, size in sizes.items():
            self._at[name], end = end, end + size
        self._table = end
        total = end + max_requests * width
        self.device_data = torch.zeros(total, dtype=torch.int32, device=device)
        self._hosts = [self._host(total) for _ in range(2)]
        self._turn = 0

    def _host(self, total: int) -> _Host:
        data = torch.zeros(total, dtype=torch.int32, pin_memory=self.on_cuda)
        return _Host(data, data.numpy(), [None] * self.max_requests)

    def fits(self, plan: StepPlan) -> bool:
        """False for a step larger than the buffers (some schedulers know no token budget)."""
        return plan.num_tokens <= self.max_tokens and len(plan.scheduled) <= self.max_requests

    def fill(self, plan: StepPlan, block_size: int, pad_to: int = 0, pad_tokens: int = 0) -> Batch:
        """Write the plan and copy it over; returns it unpadded.

        pad_to: rows of a padded decode step; pad_tokens: tokens of a padded mixed step.
        """
        self._turn = 1 - self._turn
        host = self._hosts[self._turn]
        if host.copied is not None:
            host.copied.synchronize()
        contexts, query_lens, sample_rows, row = [], [], [], 0
        for r, (request, n) in enumerate(plan.scheduled):
            first = request.num_computed_tokens
            table = self._write_table(host, r, request)
            self._write_tokens(host, row, request, first, n, table, block_size)
            row += n
            contexts.append(first + n)
            query_lens.append(n)
            if first + n == request.num_tokens:
                sample_rows.append(row - 1)
        requests = len(contexts)
        self._put(host, "query_start", 0, np.cumsum([0, *query_lens]))
        self._put(host, "context_len", 0, contexts)
        self._put(host, "sample_rows", 0, sample_rows)
        self._pad(host, requests, pad_to)
        if pad_tokens:
            self._pad_mixed(host, row, pad_tokens, query_lens, contexts)
        self._send(host, max(requests, pad_to))
        return self._batch(row, requests, len(sample_rows), query_lens, contexts)

    def decode_batch(self, size: int) -> Batch:
        """The views that a graph of `size` rows reads; contexts are what `fill` left there."""
        return self._batch(size, size, size, [1] * size, [0] * size)

    def mixed_batch(self, tokens: int) -> Batch:
        """The views that a graph of a mixed step of `tokens` tokens and S requests reads."""
        most = self.max_requests
        batch = self._batch(tokens, most, most, [], [])
        batch.memo["split"] = (
            self._view("decode_context", most),
            self._view("prefill_start", most + 1),
        )
        return batch

    def clear_mixed(self, tokens: int) -> None:
        """The same as `clear` for a mixed step."""
        host = self._hosts[self._turn]
        self._pad_mixed(host, 0, tokens, [], [])
        self._send(host, 0)

    def clear(self, size: int) -> None:
        """Make the first `size` rows padding: what a graph may read while it is captured."""
        host = self._hosts[self._turn]
        self._pad(host, 0, size)
        self._send(host, size)

    def _put(self, host: _Host, name: str, at: int, values: Any) -> None:
        begin = self._at[name] + at
        host.numbers[begin : begin + len(values)] = values

    def _write_tokens(
        self, host: _Host, row: int, request: Request, first: int, n: int, table: Ints, size: int
    ) -> None:
        prompt, output = request.prompt_token_ids, request.output_token_ids
        split = len(prompt)
        ids = prompt[first : first + n] + output[max(0, first - split) : max(0, first + n - split)]
        position = np.arange(first, first + n, dtype=np.int32)
        self._put(host, "input_ids", row, ids)
        self._put(host, "positions", row, position)
        self._put(host, "slots", row, table[position // size] * size + position % size)

    def _write_table(self, host: _Host, r: int, request: Request) -> Ints:
        """Row r of the table. A request only ever appends blocks until it is preempted."""
        begin = self._table + r * self.width
        row: Ints = host.numbers[begin : begin + self.width]
        last, count = host.rows[r], len(request.block_ids)
        same = last is not None and last[0] is request and last[1] == request.num_preemptions
        known = last[2] if last is not None and same and last[2] <= count else 0
        row[known:count] = request.block_ids[known:]
        host.rows[r] = (request, request.num_preemptions, count)
        return row

    def _pad(self, host: _Host, requests: int, pad_to: int) -> None:
        extra = max(0, pad_to - requests)
        for name, value in (("input_ids", 0), ("positions", 0), ("slots", -1), ("context_len", 0)):
            self._put(host, name, requests, [value] * extra)
        if extra:  # a decode step: row r is token r
            self._put(host, "query_start", 0, range(pad_to + 1))
            self._put(host, "sample_rows", 0, range(pad_to))

    def _pad_mixed(
        self, host: _Host, used: int, tokens: int, query_lens: list[int], contexts: list[int]
    ) -> None:
        """Padding of a mixed step whose first `used` tokens are real."""
        requests, decodes = len(query_lens), leading_decodes(query_lens)
        rest = self.max_requests - requests
        for name, value in (("input_ids", 0), ("positions", 0), ("slots", -1)):
            self._put(host, name, used, [value] * (tokens - used))
        starts = np.cumsum([0, *query_lens, *[0] * rest])
        self._put(host, "query_start", 0, starts)
        self._put(host, "prefill_start", 0, np.maximum(starts, decodes))
        self._put(host, "context_len", requests, [0] * rest)
        nobody = [0] * (self.max_requests - decodes)
        self._put(host, "decode_context", 0, [*contexts[:decodes], *nobody])
        begin = self._at["sample_rows"]
        # Rows that nobody samples may hold an old number: it must be a row of this step.
        rows = host.numbers[begin : begin + self.max_requests]
        np.minimum(rows, tokens - 1, out=rows)

    def _send(self, host: _Host, rows: int) -> None:
        used = self._table + rows * self.width
        self.device_data[:used].copy_(host.data[:used], non_blocking=True)
        if self.on_cuda:
            host.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            host.copied.record()

    def _view(self, name: str, size: int) -> torch.Tensor:
        return self.device_data[self._at[name] : self._at[name] + size]

    def _batch(
        self, tokens: int, requests: int, sampled: int, query_lens: list[int], contexts: list[int]
    ) -> Batch:
        view = self._view
        table = self.device_data[self._table : self._table + requests * self.width]
        return Batch(
            input_ids=view("input_ids", tokens),
            positions=view("positions", tokens),
            slots=view("slots", tokens),
            query_start=view("query_start", requests + 1),
            context_len=view("context_len", requests),
            block_table=table.view(requests, self.width),  # [R, M]
            sample_rows=view("sample_rows", sampled),
            query_lens=query_lens,
            context_lens=contexts,
        )

"""A step that does not fit in memory, in several passes; and what to say of one that never fits.

    16 tokens  ->  out of memory  ->  8, 8  ->  out of memory  ->  4, 4, 4, 4

A piece's keys and values are in the cache before the next begins, so cutting a prompt changes
nothing but the time.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from llmlab.config import EngineConfig
from llmlab.engine.batch import Batch

Work = TypeVar("Work")


class Passes(Generic[Work]):
    """Runs work at once if that fits, else in halves; `most` is the size that is tried.

    size(work), and cut(work, most): pieces of at most that size. unit: "tokens" or "requests",
    the word of the warning; knob: the setting that would have kept a step small enough.
    """

    def __init__(
        self,
        most: int,
        unit: str,
        knob: str,
        size: Callable[[Work], int],
        cut: Callable[[Work, int], Sequence[Work]],
    ) -> None:
        self.most = most
        self._unit, self._knob = unit, knob
        self._size, self._cut = size, cut

    def run(self, work: Work, run: Callable[[Work], torch.Tensor]) -> torch.Tensor:
        """run(work) [S, ...], its pieces joined if it did not fit. Not even 1: it is raised."""
        size = self._size(work)
        if size > self.most:
            return torch.cat([self.run(piece, run) for piece in self._cut(work, self.most)])
        try:
            return run(work)
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            if not out_of_memory(error):
                raise
            if size == 1:
                raise torch.OutOfMemoryError(str(error)) from error
        # Outside the handler: the exception would keep the failed pass's tensors alive.
        self.most = size // 2
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        warnings.warn(
            f"out of memory with {size} {self._unit} in a step; going on with {self.most} at a "
            f"time. Set EngineConfig.{self._knob} = {self.most}, or fewer num_blocks",
            RuntimeWarning,
            stacklevel=4,
        )
        return self.run(work, run)


def out_of_memory(error: RuntimeError) -> bool:
    """Whether torch says that there is no memory; on a CPU it says so in words only."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def token_passes(most: int) -> Passes[Batch]:
    """For a forward pass."""
    return Passes(
        most, "tokens", "max_num_batched_tokens", lambda batch: batch.num_tokens, cut_batch
    )


def never_fits(tokens: int, requests: int, largest: tuple[int, int], config: EngineConfig) -> str:
    """Why the requests of a step cannot be served. `largest`: (tokens, requests) that did fit."""
    what = f"out of memory in a step of {tokens} tokens of {requests} requests"
    fewer = f"fewer num_blocks than {config.num_blocks}"
    if largest == (0, 0):
        return f"{what}, and no step has fitted yet: set {fewer}"
    return (
        f"{what}; up to {largest[0]} tokens and {largest[1]} requests have fitted. Set "
        f"EngineConfig.max_num_batched_tokens = {largest[0]} and max_num_seqs = {largest[1]}, "
        f"or {fewer}"
    )


def cut_batch(batch: Batch, most_tokens: int) -> list[Batch]:
    """The same step in pieces of at most `most_tokens` tokens, to be run one after the other.

    A piece's keys and values are in the cache before the next begins, so cutting a chunk changes
    nothing. Views where a piece begins at a request's edge; small new tensors for the lengths.
    """
    pieces: list[list[tuple[int, int, int]]] = [[]]  # (request, first, last) of its tokens
    room = most_tokens
    for r, n in enumerate(batch.query_lens):
        done = 0
        while done < n:
            if room == 0:
                pieces.append([])
                room = most_tokens
            take = min(room, n - done)
            pieces[-1].append((r, done, done + take))
            done, room = done + take, room - take
    sampled = set(batch.sample_rows.tolist())
    return [_piece(batch, piece, sampled) for piece in pieces]


def _piece(batch: Batch, piece: list[tuple[int, int, int]], sampled: set[int]) -> Batch:
    starts = np.cumsum([0, *batch.query_lens])
    first = int(starts[piece[0][0]]) + piece[0][1]
    lens = [last - begin for _, begin, last in piece]
    contexts = [batch.context_lens[r] - batch.query_lens[r] + last for r, _, last in piece]
    tokens, device = sum(lens), batch.input_ids.device
    rows = [i for i in range(tokens) if first + i in sampled]
    low, high = piece[0][0], piece[-1][0] + 1

    def ints(values: Any) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    return Batch(
        input_ids=batch.input_ids[first : first + tokens],
        positions=batch.positions[first : first + tokens],
        slots=batch.slots[first : first + tokens],
        query_start=ints([0, *np.cumsum(lens).tolist()]),
        context_len=ints(contexts),
        block_table=batch.block_table[low:high],
        sample_rows=ints(rows),
        query_lens=lens,
        context_lens=contexts,
    )

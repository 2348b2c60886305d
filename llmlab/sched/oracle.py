"""A model made of hashes, which notices every wrong block, position or token.

Its KV pool stores (token, position) in each slot. A forward pass writes the planned tokens through
the block tables, reads every context back through them, and insists that it is the request's
history. The next token is a hash of that history, so the right output is known in advance and
depends on the prompt alone: not on budget, batch, blocks, cache, neighbours or preemptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from llmlab.sched.plan import StepPlan
from llmlab.sched.request import Request, SamplingParams

Slot = tuple[int, int]  # token id, position
EMPTY: Slot = (-1, -1)


class HistoryModel:
    """A pool of `num_blocks` blocks of `block_size` slots under a model of `vocab_size` tokens."""

    def __init__(self, num_blocks: int, block_size: int, vocab_size: int = 97) -> None:
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.slots: list[Slot] = [EMPTY] * (num_blocks * block_size)

    def forward(self, plan: StepPlan) -> list[int]:
        """One token for each of `plan.sampled`; RuntimeError where cache and history differ."""
        for request, _ in plan.scheduled:  # what is said to be computed was there before this step
            self._expect(request, request.num_computed_tokens)
        for request, n in plan.scheduled:
            self._write(request, n)
        for request, n in plan.scheduled:
            self._expect(request, request.num_computed_tokens + n)
        return [
            next_token([*r.prompt_token_ids, *r.output_token_ids], self.vocab_size)
            for r in plan.sampled
        ]

    def _write(self, request: Request, n: int) -> None:
        size, table = self.block_size, request.block_ids
        for position in range(request.num_computed_tokens, request.num_computed_tokens + n):
            slot = table[position // size] * size + position % size
            self.slots[slot] = (request.token_at(position), position)

    def _expect(self, request: Request, length: int) -> None:
        """The first `length` slots of the table hold the first `length` tokens."""
        history = list(zip(request.tokens(0, length), range(length), strict=True))
        found = self.read(request.block_ids)[:length]
        if found != history:
            raise RuntimeError(
                f"{request.request_id}: the cache holds {found}, its history is {history}"
            )

    def read(self, table: Sequence[int]) -> list[Slot]:
        """All slots of the blocks in `table`, in order."""
        size = self.block_size
        return [slot for block in table for slot in self.slots[block * size : (block + 1) * size]]


def next_token(history: Sequence[int], vocab_size: int) -> int:
    """The token this model writes after `history`: a hash of all of it."""
    text = ",".join(map(str, history)).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big") % vocab_size


def solo(
    prompt: Sequence[int],
    params: SamplingParams,
    max_tokens: int,
    eos_token_id: int | None = None,
    vocab_size: int = 97,
) -> tuple[list[int], str]:
    """Output and finish reason of a request alone, with no scheduler at all."""
    output: list[int] = []
    stops = set(params.stop_token_ids)
    if eos_token_id is not None and not params.ignore_eos:
        stops.add(eos_token_id)
    while True:
        output.append(next_token([*prompt, *output], vocab_size))
        if len(output) >= params.min_tokens and output[-1] in stops:
            return output, "stop"
        if len(output) >= max_tokens:
            return output, "length"

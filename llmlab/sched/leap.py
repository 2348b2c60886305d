"""Many decode steps at once, for a clock that need not wait for a model.

A simulator spends most of its steps on plans that only say "one token each". Both functions
together do exactly what so many calls of plan() and commit() would have done.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmlab.sched.base import BaseScheduler
    from llmlab.sched.request import Request


def steps_until_change(scheduler: BaseScheduler) -> int:
    """How many coming steps give one token to each request in `decoding`, and do nothing else.

    In none of them can a request end, begin, or be short of a block. 0 if that is not sure: a
    prompt is being computed, a stop token could come, a waiting request might fit.
    """
    decoding, blocks = scheduler.decoding, scheduler.blocks
    budget = scheduler.config.max_num_batched_tokens - len(decoding)
    if scheduler.prefilling or not decoding or budget < 0 or scheduler._may_begin(budget):
        return 0
    if any(request.stop_ids for request in decoding):
        return 0
    low, high = 0, min(r.max_tokens - len(r.output_token_ids) for r in decoding) - 1
    while low < high:  # the most steps whose blocks are free
        steps = (low + high + 1) // 2
        if sum(_new_blocks(scheduler, r, steps) for r in decoding) <= blocks.num_free:
            low = steps
        else:
            high = steps - 1
    return low


def _new_blocks(scheduler: BaseScheduler, request: Request, steps: int) -> int:
    needed = scheduler.blocks.blocks_for(request.num_computed_tokens + steps)
    return max(0, needed - len(request.block_ids))


def advance(scheduler: BaseScheduler, steps: int, tokens: Sequence[Sequence[int]]) -> list[int]:
    """Take `steps` steps; tokens[i] are the `steps` tokens of the i-th request in `decoding`.

    Returns the number of blocks in use after each step. ValueError if `steps` is more than
    `steps_until_change()`.
    """
    decoding, blocks = list(scheduler.decoding), scheduler.blocks
    most = steps_until_change(scheduler)
    if not 1 <= steps <= most:
        raise ValueError(f"steps = {steps}: must be in 1..{most}, what steps_until_change() says")
    if len(tokens) != len(decoding) or any(len(of_one) != steps for of_one in tokens):
        raise ValueError(f"tokens: must be {steps} for each of {len(decoding)} requests")
    for request, of_one in zip(decoding, tokens, strict=True):
        request.output_token_ids.extend(of_one)
    # Only at the edge of a block does a step do more than count: the new block is taken in the
    # step that first needs it, the full one becomes findable at the end of the step that fills it.
    size = scheduler.config.block_size
    edges: defaultdict[int, list[Request]] = defaultdict(list)
    for request in decoding:
        for step in range(-request.num_computed_tokens % size, steps + 1, size):
            edges[step].append(request)
    start = {request: request.num_computed_tokens for request in decoding}
    used = []
    for step in range(steps):
        for request in edges[step]:
            blocks.append(request, start[request] + step + 1)
        for request in edges[step + 1]:
            request.num_computed_tokens = start[request] + step + 1
            blocks.register(request, 1)
        used.append(blocks.num_used)
    for request in decoding:
        request.num_computed_tokens = start[request] + steps
    scheduler._open = None
    return used

"""Steps that overlap: the next one is launched before the tokens of this one are read back.

    host      plan 1  launch 1 | plan 2  launch 2 | read 1  emit 1 | plan 3  launch 3 | read 2 ...
    device            [ step 1 ............ ][ step 2 ............ ][ step 3 ............ ]

A step takes off when the scheduler has committed it with a placeholder for every token that is
still on its way, and lands when those tokens were read back and put in their places. The step
launched in between reads the tokens where they are, on the device.

What follows, and is tested: a request has one placeholder at most, it is its last token, and no
commit ever sees it computed, so the prefix cache hashes real tokens only. A request that ends by
its length is known to end at take-off. One that ends by a token or a stop string is known to at
landing: the step in between computes one row for nothing, and its token is dropped. That row
writes to a block that may be free by then; whoever takes the block writes in a later step, and
the device runs steps in order.

No torch here: what a token on its way is, only the runner knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmlab.sched.plan import Scheduler, StepPlan
from llmlab.sched.request import Request
from llmlab.trace import StepRecord

if TYPE_CHECKING:
    import torch

    from llmlab.engine.cuda_sampler import Sampled

PLACEHOLDER = -1


@dataclass(slots=True, eq=False)
class Flight:
    """A step that was launched. `tokens` belongs to `sampled`, row by row; None without any.

    logits: kept only for a step whose log-probabilities are asked for.
    """

    plan: StepPlan
    sampled: list[Request]
    record: StepRecord
    logits: torch.Tensor | None
    tokens: Sampled | None
    timer: Callable[[], float] | None

    @property
    def waits(self) -> bool:
        """Must its tokens be read back before the next step is planned?

        A repetition penalty looks at every token so far, and log-probabilities at the logits,
        which the next step may overwrite. Both are worked out on the host; nothing else needs to
        be: seeds and min_tokens go by the number of tokens, which is known.
        """
        return any(
            r.params.repetition_penalty != 1.0 or r.params.logprobs is not None
            for r in self.sampled
        )


def on_their_way(plan: StepPlan, before: Sequence[Request]) -> list[tuple[int, int]]:
    """(row, source): row of the step `plan` whose input is token `source` of the step before.

    before: the requests that step sampled. Only the last token of a request can be on its way,
    and only a step that computes all of a request's tokens reads it.
    """
    source = {r: i for i, r in enumerate(before) if r.output_token_ids[-1:] == [PLACEHOLDER]}
    pairs, end = [], 0
    for request, n in plan.scheduled:
        end += n
        if request in source and n == request.num_missing_tokens:
            pairs.append((end - 1, source[request]))
    return pairs


def take_off(scheduler: Scheduler, plan: StepPlan, sampled: Sequence[Request]) -> None:
    """Commit a launched step with a placeholder for each of its tokens."""
    scheduler.commit(plan, [PLACEHOLDER] * len(sampled))


def land(scheduler: Scheduler, sampled: Iterable[Request], tokens: Iterable[int]) -> None:
    """Put each token in its place; a request that it ends is over now, and its blocks free.

    Passed over: who was aborted meanwhile, and who had ended before it took off.
    """
    for request, token in zip(sampled, tokens, strict=True):
        if not has_placeholder(request):
            continue
        request.output_token_ids[-1] = token
        if request.stops_at(token) and not request.finished:
            scheduler.finish(request.request_id, "stop", request.stop_reason)


def has_placeholder(request: Request) -> bool:
    return request.output_token_ids[-1:] == [PLACEHOLDER]


def forget(request: Request) -> None:
    """Drop the token that is still on its way to a request that has ended, if there is one."""
    if has_placeholder(request):
        request.output_token_ids.pop()

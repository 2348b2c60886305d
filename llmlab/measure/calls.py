"""From planned requests to calls: prompts of the planned length, made from the workload's seed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from llmlab.measure.client import Call
from llmlab.measure.workload import PlannedRequest

# Frequent, short English words: about one token each in a common vocabulary.
COMMON = (
    "the of and to in is that it was for on are as with his they at be this have from or one had "
    "by word but not what all were we when your can said there use an each which she do how their "
    "if will up other about out many then them these so some her would make like him into time "
    "has look two more write go see number no way could people my than first water been call who "
    "its now find long down day did get come made may part over new sound take only little work "
    "know"
)
WORDS = COMMON.split()


def make_calls(
    planned: Sequence[PlannedRequest],
    *,
    vocab_size: int | None,
    prefix: str = "r",
    ignore_eos: bool = True,
    body: Mapping[str, Any] | None = None,
) -> list[Call]:
    """One call a planned request.

    vocab_size: prompts are that many random token ids, exact in length; None: prompts are about
    as many words, and the true length is what the server reports. ignore_eos: answers have
    exactly the planned length (min_tokens = max_tokens), where the server knows these fields.
    """
    more = dict(body or {})
    calls = []
    for request in planned:
        fixed: dict[str, Any] = {}
        if ignore_eos:
            fixed = {"ignore_eos": True, "min_tokens": request.output_tokens}
        calls.append(
            Call(
                request_id=f"{prefix}{request.index}",
                prompt=prompt_text(request)
                if vocab_size is None
                else request.prompt_token_ids(vocab_size),
                max_tokens=request.output_tokens,
                class_name=request.class_name,
                t_sched_ns=request.t_sched_ns,
                cancel_after_ns=request.cancel_after_ns,
                cancel_after_tokens=request.cancel_after_tokens,
                body={**fixed, **more},
            )
        )
    return calls


def prompt_text(request: PlannedRequest) -> str:
    """As many words as the request has prompt tokens; the same for the same seed and index."""
    rng = random.Random(f"{request.seed}-{request.index}")
    return " ".join(rng.choices(WORDS, k=request.prompt_tokens))

"""Requests of one size, all there at the start, on an engine that has room for all of them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmlab.config import EngineConfig
from llmlab.sched.request import SamplingParams

if TYPE_CHECKING:
    from llmlab.engine import Engine

BLOCK = 16  # tokens


def roomy(
    requests: int, prompt_tokens: int, output_tokens: int, most_batched: int | None = None
) -> EngineConfig:
    """Blocks for so many requests at once, so none is preempted, and a step for all prompts.

    most_batched: the most tokens of a step where that would be too large a one.
    """
    longest = prompt_tokens + output_tokens
    whole = max(requests * prompt_tokens, longest)
    return EngineConfig(
        max_num_batched_tokens=max(requests, min(whole, most_batched or whole)),
        max_num_seqs=requests,
        block_size=BLOCK,
        num_blocks=requests * -(-longest // BLOCK),
        max_model_len=longest,
    )


def drive(
    engine: Engine,
    output_tokens: Sequence[int],
    prompt_tokens: int,
    stop: threading.Event | None = None,
) -> None:
    """Send a request for each of `output_tokens` at once; step until all end, or `stop` is set."""
    vocab, sent = engine.model.config.vocab_size, engine.clock()
    names = [f"r{number}" for number in range(len(output_tokens))]
    for number, (name, length) in enumerate(zip(names, output_tokens, strict=True)):
        ids = [(31 * number + 7 * i) % vocab for i in range(prompt_tokens)]
        params = SamplingParams(max_tokens=length, ignore_eos=True)
        engine.add(ids, params, request_id=name, t_send=sent)
    while engine.has_work and not (stop is not None and stop.is_set()):
        engine.step()
    for name in names:
        engine.abort(name)  # of an ended one: nothing happens

"""A crowd of clients: 64 kinds of request, each with one answer whoever else is being served."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from llmlab.config import EngineConfig
from llmlab.engine import Engine, Model
from llmlab.measure.client import Call
from llmlab.sched.request import SamplingParams

KINDS = 64


def prompt(kind: int) -> list[int]:
    rng = random.Random(kind)
    return [rng.randrange(32, 127) for _ in range(rng.randrange(4, 60))]


def params(kind: int) -> SamplingParams:
    return SamplingParams(temperature=1.0, seed=kind, max_tokens=16 + kind % 17, ignore_eos=True)


def solo_texts(model: Model, config: EngineConfig) -> dict[int, str]:
    """What each kind answers when it is alone."""
    engine = Engine(model, config)
    return {
        kind: "".join(o.text for o in engine.stream(prompt(kind), params(kind)))
        for kind in range(KINDS)
    }


def calls(prefix: str = "") -> Iterator[Call]:
    """Without end; every eighth client leaves early."""
    prompts = [prompt(kind) for kind in range(KINDS)]
    for i in itertools.count():
        kind = i % KINDS
        body = {"temperature": 1.0, "seed": kind, "ignore_eos": True}
        leave = 1 + i // 8 % 5 if i % 8 == 7 else None
        yield Call(
            f"{prefix}{i}",
            prompts[kind],
            params(kind).max_tokens,
            cancel_after_tokens=leave,
            body=body,
        )

"""Decode steps of the whole engine, each launched before the last is read back, or after.

Between two steps the host plans, fills buffers, draws and writes down what came out. Without
asynchronous scheduling the card is idle for that time; with it, only for what the host needs
longer than a whole step. Both take turns on one engine, with the same plans and the same tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from statistics import median
from typing import Any

from llmlab.bench.gpu_model import BLOCK, MODELS, TINY, random_model
from llmlab.bench.gpu_timing import Bench, summary
from llmlab.config import EngineConfig
from llmlab.engine.cuda_runner import CudaRunner
from llmlab.engine.engine import Engine
from llmlab.kernels.launch import cdiv
from llmlab.sched.request import SamplingParams
from llmlab.trace import StepRecord

Row = dict[str, Any]
PROMPT = 16


def run(bench: Bench) -> Iterator[Row]:
    """Each batch with and without; a row of tokens that differ is wrong, and not timed."""
    model = random_model(TINY if bench.tiny else MODELS[0], bench)
    batches, count = ((2,), 4) if bench.tiny else ((1, 8, 64), 128)
    config = EngineConfig(
        max_num_batched_tokens=max(batches) * PROMPT,
        max_num_seqs=max(batches),
        block_size=BLOCK,
        num_blocks=max(batches) * cdiv(PROMPT + count, BLOCK),
        max_model_len=PROMPT + count,
    )
    engine = Engine(model, config, attention="triton", runner=CudaRunner)
    for batch in batches:
        row = {"model": model.config.name, "batch": batch}
        if bench.is_over():
            yield {**row, "status": "no time"}
            continue
        said, steps = take_turns(engine, batch, count, 1 if bench.tiny else 3)
        for overlapped, found in steps.items():
            how = {**row, "async_scheduling": overlapped}
            if said[True] != said[False]:
                yield {**how, "status": "wrong: not timed"}
            else:
                yield {**how, "status": "ok", **figures(found, batch)}


def take_turns(
    engine: Engine, batch: int, count: int, rounds: int
) -> tuple[dict[bool, list[list[int]]], dict[bool, list[list[StepRecord]]]]:
    """Tokens by request, and the decode steps of every round; the first round only warms up."""
    said: dict[bool, list[list[int]]] = {}
    steps: dict[bool, list[list[StepRecord]]] = {True: [], False: []}
    for number in range(rounds + 1):
        for overlapped in (True, False):
            engine.async_scheduling = overlapped
            first = len(engine.trace.steps)
            said[overlapped] = decode(engine, batch, count)
            found = [
                step
                for step in engine.trace.steps[first:]
                if step.prefill_tokens == 0 and len(step.scheduled) == batch
            ]
            if number:
                steps[overlapped].append(found)
    return said, steps


def decode(engine: Engine, batch: int, count: int) -> list[list[int]]:
    """`count` greedy tokens of each of `batch` requests that start together."""
    params = SamplingParams(max_tokens=count, ignore_eos=True)
    names = [engine.add([(7 * i + r) % 250 for i in range(PROMPT)], params) for r in range(batch)]
    tokens: dict[str, list[int]] = {name: [] for name in names}
    while engine.has_work:
        for output in engine.step():
            tokens[output.request_id] += output.token_ids
    return [tokens[name] for name in names]


def figures(rounds: list[list[StepRecord]], batch: int) -> Row:
    """Time from one step's tokens to the next one's, and how much of it the card was busy."""
    gaps = [(b.t_end - a.t_end) / 1e9 for steps in rounds for a, b in pairwise(steps)]
    timing = summary(gaps)
    found: Row = {**timing.as_row(), "tokens_per_s": batch / timing.median}
    device = [(step.utilization or {}).get("device_seconds") for steps in rounds for step in steps]
    known = [seconds for seconds in device if seconds is not None]
    if known:
        busy = median(known)
        found |= {"device_us": busy * 1e6, "device_share": busy / timing.median}
    return found

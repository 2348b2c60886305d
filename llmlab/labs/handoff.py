"""The handoff from prompt to answer: one request's passes by hand, as a table, and its check.

passes = Passes(model)             # forward(tokens): what is cached stays, only new tokens go in
generate(passes.forward, prompt, count)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from llmlab.check.result import Result
from llmlab.config import EngineConfig
from llmlab.engine.batch import make_batch
from llmlab.engine.model import Model
from llmlab.engine.runner import Runner
from llmlab.labs.code_check import Try, check_code
from llmlab.perf.cost import CostModel, trace_shapes
from llmlab.trace import Trace
from llmlab.viz.show import Shown, shown_table

EXERCISE = "C2.handoff"

Forward = Callable[[list[int]], int]  # new tokens, behind all that is cached -> the next token
Generate = Callable[[Forward, list[int], int], list[int]]


class Passes:
    """One sequence, one KV cache; `forward` is a pass and `log` has (tokens in, ms) of each."""

    def __init__(self, model: Model, most: int = 512) -> None:
        size = EngineConfig().block_size
        self.config = EngineConfig(num_blocks=-(-most // size), max_model_len=most)
        self.runner = Runner(model, self.config)
        self.cached = 0
        self.log: list[tuple[int, float]] = []

    def forward(self, tokens: Sequence[int]) -> int:
        """Cache the keys and values of `tokens`, in order; the likeliest token after the last."""
        new, context = list(tokens), self.cached + len(tokens)
        room = self.config.max_model_len
        if not new or context > room:
            raise ValueError(f"tokens: {len(new)} after {self.cached}: must be 1 to {room} in all")
        places = list(range(self.cached, context))
        table = list(range(-(-context // self.config.block_size)))
        batch = make_batch(new, places, places, [0, len(new)], [context], [table], [len(new) - 1])
        begun = time.perf_counter()
        token = int(self.runner.forward(batch)[0].argmax())
        self.log.append((len(new), 1e3 * (time.perf_counter() - begun)))
        self.cached = context
        return token


def generate(forward: Forward, prompt: list[int], count: int) -> list[int]:
    """The library's own: the prompt in one pass, then each token but the last in its own."""
    answer = [forward(prompt)]
    while len(answer) < count:
        answer.append(forward([answer[-1]]))
    return answer


class History:
    """A stand-in for a model whose next token is a function of all that is cached."""

    def __init__(self) -> None:
        self.cached: list[int] = []
        self.passes: list[int] = []

    def forward(self, tokens: Sequence[int]) -> int:
        """A pass over new tokens; the token that comes after all that is cached then."""
        self.cached += tokens
        self.passes.append(len(tokens))
        return hash(tuple(self.cached)) % 1000


def _fault(history: History, prompt: list[int], count: int, answer: object) -> str | None:
    """What is wrong with an answer and with the passes that made it; None if nothing."""
    model = History()
    expected = generate(model.forward, prompt, count)
    if answer == prompt + expected:
        return "returns the prompt as well: only the new tokens are the answer"
    if not isinstance(answer, list) or len(answer) != count:
        told = f"{len(answer)} tokens" if isinstance(answer, list) else repr(answer)
        return f"returns {told}: must be a list of {count}"
    if len(history.cached) > len(prompt) + count:
        return "sends tokens that are cached already: after the prompt, only the newest one is new"
    if answer != expected:
        return "gives other tokens: each pass gets what is not cached yet, in order, nothing else"
    if history.passes[0] < len(prompt):
        return f"cuts the prompt into pieces: all {len(prompt)} tokens are known, send them at once"
    if len(history.passes) > count:
        return "makes one pass too many: nobody asked for the token after the last one"
    return None


def check_generate(mine: Generate) -> Result:
    """Try the learner's loop on a model that remembers; the first case that goes wrong is shown."""
    said = "One pass for the prompt, one for each token after the first; the tokens are right."
    return check_code(EXERCISE, _tries(mine), said)


def _tries(mine: Generate) -> Iterator[Try]:
    for length, count in ((5, 4), (1, 3), (40, 1), (12, 9)):
        history, prompt = History(), [17 * i % 101 for i in range(length)]
        yield Try(
            f"{length} prompt tokens and {count} to write",
            partial(mine, history.forward, list(prompt), count),
            partial(_fault, history, prompt, count),
            began=partial(bool, history.passes),
        )


FIRST, LAST = 5, 2  # passes that a long table keeps
PASS_HEAD = ["pass", "tokens in", "KV tokens after", "gives", "ms", "GFLOP", "MB", "FLOP per byte"]


def show_passes(trace: Trace, request_id: str, cost: CostModel) -> Shown:
    """One request's steps as a table, the first and the last; times measured, work counted.

    For a request that had every one of its steps to itself; ValueError for another one.
    """
    rows: list[list[str]] = []
    cached = 0
    prompt = trace.requests[request_id].prompt_tokens or 0
    for step, shape in zip(trace.steps, trace_shapes(trace), strict=True):
        entries = [entry for entry in step.scheduled if entry[0] == request_id]
        if not entries:
            continue
        if len(step.scheduled) > 1:
            raise ValueError(f"{request_id} shares a step: its work cannot be told apart")
        cached += entries[0][1]
        work = cost.cost(shape)
        gives = f"token {cached - prompt + 1}" if cached >= prompt else "nothing yet"
        rows.append(
            [
                str(len(rows) + 1),
                str(entries[0][1]),
                str(cached),
                gives,
                f"{(step.t_end - step.t_start) / 1e6:.1f}",
                f"{work.flops / 1e9:.2f}",
                f"{work.bytes / 1e6:.0f}",
                f"{work.intensity:.1f}",
            ]
        )
    if len(rows) > FIRST + LAST:
        rows = [*rows[:FIRST], ["…"] * len(PASS_HEAD), *rows[-LAST:]]
    return shown_table("One request, pass by pass: ms measured, work counted", PASS_HEAD, rows)

"""The tuning exercise: one workload, one deployment, one knob; every run is simulated."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from llmlab.check.result import Result
from llmlab.config import EngineConfig
from llmlab.labs.code_check import failed, not_yet, passed
from llmlab.measure.workload import load_workload
from llmlab.perf.models import load_model_config
from llmlab.sim.simulate import simulate
from llmlab.trace import RequestRecord, StepRecord, TokenEvent, Trace
from llmlab.viz.trials import limits_by_figure, misses, trial_of

MODEL, HARDWARE, CONTEXT = "llama-3.1-8b", "h100-sxm", 8448
STEADY, BURST = "chat_and_documents", "burst"
EXERCISE = "B9.limit"


@lru_cache(maxsize=16)
def serve(
    max_num_batched_tokens: int,
    workload: str = STEADY,
    policy: str = "chunked",
    requests: int = 400,
) -> Trace:
    """A simulated run of a stored workload; only the token limit and the policy are free."""
    load = load_workload(workload).with_(stop={"num_prompts": requests})
    EngineConfig(max_num_batched_tokens=max_num_batched_tokens)  # a clear error for a bad limit
    return simulate(
        load,
        load_model_config(MODEL),
        HARDWARE,
        policy=policy,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=CONTEXT,
    )


def check_limit(limit: Any, requests: int = 400) -> Result:
    """Does this token limit keep all limits of the steady mix, at the p99 of chat gaps too?"""
    if limit is None or limit is ...:
        return not_yet(EXERCISE)
    if not isinstance(limit, int) or isinstance(limit, bool) or not 16 <= limit <= 65_536:
        return Result(EXERCISE, "error", "Give a whole number of tokens from 16 to 65536.")
    trial = trial_of(serve(limit, requests=requests), str(limit))
    limits = limits_by_figure(load_workload(STEADY).limits)
    over = misses(trial, limits)
    if trial.gap_p99 is not None and trial.gap_p99 > limits["chat gap p95"]:
        over.append("the same limit at the p99 of the chat gaps")
    if over:
        return failed(EXERCISE, f"Simulated with {limit}: fails {', '.join(over)}.")
    said = f"Simulated with {limit}: every limit holds, the gap limit at its p99 too."
    return passed(EXERCISE, said)


def alternating(starts: list[float], decodes: int, chunk: int) -> Trace:
    """An illustrative trace: exclusive decode steps and prompt chunks by turns.

    starts: when each step begins, ms; the last is where the picture ends.
    """
    kinds = [i % 2 == 0 for i in range(len(starts) - 1)]
    return _illustrated(starts, [(decodes if d else 0, 0 if d else chunk) for d in kinds])


def mixed(starts: list[float], decodes: int, chunk: int) -> Trace:
    """The same work in steps that hold both."""
    return _illustrated(starts, [(decodes, chunk)] * (len(starts) - 1))


def _illustrated(starts: list[float], tokens: list[tuple[int, int]]) -> Trace:
    trace = Trace(meta={"source": "illustration", "simulated": True})
    stamps = [round(ms * 1e6) for ms in starts]
    for i, (decodes, chunk) in enumerate(tokens):
        work = [(f"chat{k}", 1, 100 + i, True) for k in range(decodes)]
        work += [("document", chunk, i * chunk, False)] if chunk else []
        trace.steps.append(StepRecord(i, stamps[i], stamps[i + 1], work))
        for name, *_ in work[:decodes]:
            chat = RequestRecord(name, class_name="chat", t_send=0)
            trace.requests.setdefault(name, chat).events.append(TokenEvent(stamps[i + 1]))
    return trace

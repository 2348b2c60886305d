"""Check a learner's figures of a request they ran themselves: the parameters are its stamps.

The same judge as for the worksheets, with formulas over the measured stamps, so the usual
mistakes are named here too. Nothing is recorded: nobody else has these numbers.
"""

from __future__ import annotations

from typing import Any

from llmlab.check.item import Draws, NumericSpec
from llmlab.check.judge import judge
from llmlab.check.result import Result
from llmlab.check.student import CURRICULUM
from llmlab.check.worksheet import Item, Shared
from llmlab.measure.per_request import merge_events, output_tokens
from llmlab.trace import RequestRecord

# name -> (unit, formula, mistakes as (id, formula, message))
QUESTIONS: dict[str, tuple[str, str, tuple[tuple[str, str, str], ...]]] = {
    "ttft": (
        "ms",
        "first - send",
        (
            ("prefill-alone", "first - scheduled", "That is the prefill alone: start at send."),
            ("to-the-end", "last - send", "That is the last token; TTFT ends at the first."),
        ),
    ),
    "tpot": (
        "ms",
        "(last - first) / (tokens - 1)",
        (
            (
                "n-gaps",
                "(last - first) / tokens",
                "That divides by the tokens. The first token ends no gap: there is one gap fewer.",
            ),
            (
                "ttft-inside",
                "(last - send) / tokens",
                "That has the wait for the first token in it; TPOT starts at the first token.",
            ),
        ),
    ),
    "e2e": (
        "ms",
        "last - send",
        (("without-ttft", "last - first", "The wait for the first token belongs to E2E too."),),
    ),
    "rate": (
        "tokens/s",
        "1000 * (tokens - 1) / (last - first)",
        (("per-ms", "(tokens - 1) / (last - first)", "That is tokens per millisecond."),),
    ),
}


def check_own(record: RequestRecord, name: str, answer: Any) -> Result:
    """Check `answer` to "ttft", "tpot", "e2e" (ms) or "rate" (tokens/s) of one finished request.

    Raises ValueError for another name, or for a request that has no such figure.
    """
    if name not in QUESTIONS:
        raise ValueError(f"name = {name!r}: must be one of {', '.join(QUESTIONS)}")
    unit, formula, mistakes = QUESTIONS[name]
    spec = NumericSpec.model_validate(
        {
            "id": f"Own.{name}",
            "covers": ["C10"],
            "prompt": f"{name} of {record.request_id}",
            "answer": formula,
            "unit": unit,
            "tolerance": {"relative": 0.01},
            "parameters": {
                key: {"first": value, "draw": [value]} for key, value in _stamps(record).items()
            },
            "misconceptions": [
                {"id": key, "formula": wrong, "message": text} for key, wrong, text in mistakes
            ],
        }
    )
    return judge(Item(spec, Shared("own", Draws())), answer, CURRICULUM)


def _stamps(record: RequestRecord) -> dict[str, float]:
    """Stamps in ms since send, and the number of tokens."""
    events, n = merge_events(record), output_tokens(record)
    if record.t_send is None or len(events) < 2 or not n:
        raise ValueError(
            f"request {record.request_id!r} has {len(events)} token events: "
            "run one with at least two output tokens"
        )
    scheduled = record.t_first_scheduled
    return {
        "send": 0.0,
        "scheduled": ((record.t_send if scheduled is None else scheduled) - record.t_send) / 1e6,
        "first": (events[0].t - record.t_send) / 1e6,
        "last": (events[-1].t - record.t_send) / 1e6,
        "tokens": float(n),
    }

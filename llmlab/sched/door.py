"""Who may come in: a request is taken only if it can end, whatever else runs beside it.

A request of P prompt tokens that writes M tokens needs slots for P + M - 1 of them: nothing is
computed after the last token, so it is never written. Refusals name the number that would fit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llmlab.config import EngineConfig, require, require_int
from llmlab.sched.request import Request, RequestStatus, SamplingParams


class Limit(NamedTuple):
    """Prompts of at most `prompt` tokens, prompt and output together at most `total`."""

    prompt: int
    total: int
    why: str


def settle(request: Request, limits: list[Limit], vocab_size: int | None) -> None:
    """Check lengths and token ids, then set `max_tokens` and `stop_ids`.

    ValueError with what is allowed; the request is then as it was.
    """
    max_tokens = _resolve_max_tokens(request, limits)
    _check_token_ids(request, vocab_size)
    params, eos = request.params, request.eos_token_id
    ends = () if eos is None or params.ignore_eos else (eos,)
    request.max_tokens = max_tokens
    request.stop_ids = frozenset((*params.stop_token_ids, *ends))


def length_limits(config: EngineConfig) -> list[Limit]:
    """The limits that hold under every policy: the context, and the whole pool for one alone."""
    slots = config.num_blocks * config.block_size
    context = config.max_model_len
    return [
        Limit(context - 1, context, f"max_model_len = {context}"),
        Limit(
            slots,
            slots + 1,
            f"num_blocks x block_size = {config.num_blocks} x {config.block_size} = {slots} slots",
        ),
    ]


def _resolve_max_tokens(request: Request, limits: list[Limit]) -> int:
    """How many tokens the request may write; ValueError with what would fit if it never fits."""
    prompt, params = request.num_prompt_tokens, request.params
    tightest = min(limits, key=lambda limit: limit.prompt)
    _require(
        prompt <= tightest.prompt,
        "Request.prompt_token_ids",
        f"{prompt} tokens",
        f"at most {tightest.prompt} tokens ({tightest.why})",
    )
    tightest = min(limits, key=lambda limit: limit.total)
    most = tightest.total - prompt
    after = f"at most {most} after a prompt of {prompt} tokens ({tightest.why})"
    if params.max_tokens is not None:
        _require(
            params.max_tokens <= most, "SamplingParams.max_tokens", str(params.max_tokens), after
        )
        return params.max_tokens
    _require(params.min_tokens <= most, "SamplingParams.min_tokens", str(params.min_tokens), after)
    return most


def check_request(request: Any) -> None:
    """Everything about a request that needs no pool; the prompt's length comes first."""
    require(isinstance(request, Request), "Scheduler", "request", request, "a Request")
    require(
        isinstance(request.request_id, str) and request.request_id != "",
        "Request",
        "request_id",
        request.request_id,
        "a non-empty string",
    )
    require(
        isinstance(request.params, SamplingParams),
        "Request",
        "params",
        request.params,
        "SamplingParams",
    )
    require_int("Request", "priority", request.priority, -(2**63), 2**63 - 1)
    prompt = request.prompt_token_ids
    _require(
        isinstance(prompt, list) and len(prompt) > 0,
        "Request.prompt_token_ids",
        "[]" if isinstance(prompt, list) else f"a {type(prompt).__name__}",
        "a list of at least one token id",
    )
    is_fresh = request.status is RequestStatus.WAITING and not request.output_token_ids
    require(is_fresh, "Request", "status", request.status.value, "that of a request never run")


def _check_token_ids(request: Request, vocab_size: int | None) -> None:
    """Whole numbers in the vocabulary; without a known vocabulary, in what a slot can hold."""
    top = (2**63 if vocab_size is None else vocab_size) - 1
    prompt, stops = request.prompt_token_ids, request.params.stop_token_ids
    # The usual case is looked through without a Python loop; a bad one is then named.
    if set(map(type, prompt)) != {int} or min(prompt) < 0 or max(prompt) > top:
        for position, token in enumerate(prompt):
            require_int("Request", f"prompt_token_ids[{position}]", token, 0, top)
    for token in stops:
        require_int("SamplingParams", "stop_token_ids", token, 0, top)
    if request.eos_token_id is not None:
        require_int("Request", "eos_token_id", request.eos_token_id, 0, top)


def _require(ok: bool, field: str, value: str, allowed: str) -> None:
    if not ok:
        raise ValueError(f"{field} = {value}: must be {allowed}")

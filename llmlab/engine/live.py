"""One request in the engine: its text, its seed, and what a step's token means for its reader."""

from __future__ import annotations

import secrets
from collections import deque
from dataclasses import dataclass

from llmlab.config import require, require_int
from llmlab.engine.model import Model
from llmlab.engine.sampler import Row, TokenLogprob
from llmlab.engine.text import TextStream
from llmlab.engine.tokenizer import Tokenizer
from llmlab.sched.plan import Scheduler
from llmlab.sched.request import Request, SamplingParams


@dataclass(slots=True)
class TokenOutput:
    """What one step gave one request.

    text is what became certain with these tokens; joined over a request it is the whole answer.
    t: ns on the engine's clock. finish_reason: None, or in the last output "stop" or "length",
    or "error" if the request could not be computed; the trace then holds the reason.
    """

    request_id: str
    token_ids: list[int]
    text: str
    t: int
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: list[TokenLogprob] | None = None


class Live:
    """A request in the engine, with what the scheduler need not know."""

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        params = request.params
        self.request = request
        self.text = TextStream(
            tokenizer.detokenizer(), params.stop, include_stop=params.include_stop_str_in_output
        )
        self.seed = secrets.randbits(63) if params.seed is None else params.seed
        self.inbox: deque[TokenOutput] | None = None

    def row(self) -> Row:
        """What the draw of its next token depends on."""
        request = self.request
        params, outputs = request.params, request.output_token_ids
        banned: list[int] = []
        if len(outputs) < params.min_tokens:
            banned = list(params.stop_token_ids)
            if request.eos_token_id is not None and not params.ignore_eos:
                banned.append(request.eos_token_id)
        history: list[int] = []
        if params.repetition_penalty != 1.0:
            history = request.prompt_token_ids + outputs
        return Row(params, self.seed, len(outputs), history, banned)

    def take(self, token: int, scheduler: Scheduler) -> TokenOutput:
        """The output of its latest token; a stop string in the text ends the request."""
        text = self._text(token, scheduler)
        request = self.request
        return TokenOutput(
            request.request_id, [token], text, 0, request.finish_reason, request.stop_reason
        )

    def _text(self, token: int, scheduler: Scheduler) -> str:
        request, params = self.request, self.request.params
        if request.stop_reason == token and not params.include_stop_str_in_output:
            return self.text.flush()  # a stop token is no part of the answer
        may_stop = len(request.output_token_ids) >= params.min_tokens
        text = self.text.push(token, may_stop=may_stop)
        if request.finished:
            text += self.text.flush()
        if self.text.stopped is not None:
            if not request.finished:
                scheduler.finish(request.request_id, "stop", self.text.stopped)
            request.finish_reason, request.stop_reason = "stop", self.text.stopped
        return text


def make_request(
    model: Model,
    request_id: str,
    ids: list[int],
    params: SamplingParams | None,
    priority: int,
) -> Request:
    """A request checked against the model; the scheduler checks what concerns the pool."""
    params = params or SamplingParams()
    require(isinstance(params, SamplingParams), "Request", "params", params, "SamplingParams")
    require_int("Request", "priority", priority, -(2**31), 2**31)
    for token in (*ids, *params.stop_token_ids):
        require_int("Request", "token id", token, 0, model.config.vocab_size - 1)
    eos = model.tokenizer.eos_token_id
    return Request(request_id, ids, params, priority=priority, eos_token_id=eos)

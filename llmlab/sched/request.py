"""A request as the scheduler sees it: token ids, how far it has been computed, how it ended.

There are no phases. A request has `num_tokens` and `num_computed_tokens`; prefill, decode, chunk
and recompute are only how far the second is behind the first. No torch, no clock, no text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from llmlab.config import is_real, require, require_int

MAX_TOKENS_LIMIT = 2**31 - 1


@dataclass(frozen=True)
class SamplingParams:
    """How to choose tokens and when to stop. Names and meaning are vLLM's.

    temperature 0 is greedy. top_k 0 or -1 and top_p 1.0 and min_p 0.0 mean off. max_tokens None
    means as many as fit. logprobs: how many top log-probabilities to return beside the chosen.
    seed None draws a fresh one per request.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        def real(name: str, low: float, high: float, allowed: str) -> None:
            value: Any = getattr(self, name)
            fits = is_real(value) and low <= value <= high
            require(fits, "SamplingParams", name, value, allowed)

        real("temperature", 0.0, 1e6, "a number in 0..1e6")
        real("top_p", 1e-12, 1.0, "a number in (0, 1]")
        real("min_p", 0.0, 1.0, "a number in [0, 1]")
        real("repetition_penalty", 1e-6, 1e6, "a number in 1e-6..1e6")
        require_int("SamplingParams", "top_k", self.top_k, -1)
        require_int("SamplingParams", "min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None:
            require_int("SamplingParams", "max_tokens", self.max_tokens, 1, MAX_TOKENS_LIMIT)
            require(
                self.min_tokens <= self.max_tokens,
                "SamplingParams",
                "min_tokens",
                self.min_tokens,
                f"at most max_tokens ({self.max_tokens})",
            )
        if self.seed is not None:
            require_int("SamplingParams", "seed", self.seed, -(2**63), 2**63 - 1)
        if self.logprobs is not None:
            require_int("SamplingParams", "logprobs", self.logprobs, 0, 20)
        self._settle_stops()

    def _settle_stops(self) -> None:
        """One string or a list is what people write; a tuple is what a frozen record holds."""
        for name in ("stop", "stop_token_ids"):
            given: Any = getattr(self, name)
            if given is None:
                given = ()
            elif name == "stop" and isinstance(given, str):
                given = (given,)
            require(isinstance(given, Iterable), "SamplingParams", name, given, "a list")
            object.__setattr__(self, name, tuple(given))
        are_texts = all(isinstance(text, str) and text != "" for text in self.stop)
        allowed = "a non-empty string or a list of them"
        require(are_texts, "SamplingParams", "stop", self.stop, allowed)
        for token in self.stop_token_ids:
            require_int("SamplingParams", "stop_token_ids", token, 0)


class RequestStatus(Enum):
    """Where a request is; a preempted one waits too, with output already."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """One request. Identity, not content, makes two requests equal.

    priority: small = urgent, used by policy "priority". block_ids: the block table, in order of
    position. finish_reason: None while alive, then "stop", "length", "abort" (vLLM's words).
    stop_reason: the stop token id or stop string that ended it, if any.
    Set by the scheduler: arrival, order of `add`; admission, order in which it last began to run;
    max_tokens, resolved at the door; stop_ids, the token ids that end it, the end-of-sequence
    token included; block_keys, what its full blocks are found by in the prefix cache.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    eos_token_id: int | None = None
    arrival: int = -1
    max_tokens: int = 0
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    block_ids: list[int] = field(default_factory=list)
    status: RequestStatus = RequestStatus.WAITING
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    admission: int = -1
    stop_ids: frozenset[int] = frozenset()
    block_keys: list[bytes] = field(default_factory=list, repr=False)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens known so far: prompt and output."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_missing_tokens(self) -> int:
        """Known tokens whose keys and values are not in the cache yet."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def decodes(self) -> bool:
        """True if the next step only needs the one token that was just sampled."""
        return bool(self.output_token_ids) and self.num_missing_tokens == 1

    def stops_at(self, token: int) -> bool:
        """Does its latest output token, `token`, end it as a stop? Sets the reason if so."""
        if token not in self.stop_ids or len(self.output_token_ids) < self.params.min_tokens:
            return False
        self.finish_reason = "stop"
        # The end-of-sequence token is no reason of its own, unless it was asked for by id.
        unsaid = token == self.eos_token_id and not self.params.ignore_eos
        self.stop_reason = None if unsaid else token
        return True

    def ends_at(self, token: int) -> bool:
        """Does its latest output token, `token`, end it? Sets the reason if so.

        (max_tokens is no less than min_tokens.)
        """
        if not self.stops_at(token) and len(self.output_token_ids) >= self.max_tokens:
            self.finish_reason = "length"
        return self.finish_reason is not None

    @property
    def finished(self) -> bool:
        return self.status is RequestStatus.FINISHED

    def token_at(self, position: int) -> int:
        """Token id at an absolute position of prompt + output."""
        prompt = self.prompt_token_ids
        if position < len(prompt):
            return prompt[position]
        return self.output_token_ids[position - len(prompt)]

    def tokens(self, start: int, end: int) -> list[int]:
        """Token ids at the positions start .. end - 1."""
        prompt = self.prompt_token_ids
        if end <= len(prompt):
            return prompt[start:end]
        return [self.token_at(position) for position in range(start, end)]

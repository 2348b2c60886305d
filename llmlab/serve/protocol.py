"""The request bodies of the OpenAI API that this server takes, and what it makes of them.

Types are strict ("5" is no number) and unknown fields are refused by name, so that a misspelt
`max_tokens` is never silently ignored. Fields that only label a request are taken and unused.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from llmlab.sched.request import MAX_TOKENS_LIMIT, SamplingParams
from llmlab.serve.errors import ApiError

NonEmpty = Annotated[str, Field(min_length=1)]
Body = TypeVar("Body", bound="GenerateRequest")


class Strict(BaseModel):
    """No conversion of types, and a field that is not known is an error."""

    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(Strict):
    """include_usage: one last frame with the counts. continuous_usage_stats: counts in each."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class GenerateRequest(Strict):
    """What both endpoints share. None means "not said" everywhere, as OpenAI's clients send it."""

    model: str
    max_tokens: int | None = Field(default=None, ge=1, le=MAX_TOKENS_LIMIT)
    min_tokens: int | None = Field(default=None, ge=0)
    temperature: float | None = Field(default=None, ge=0.0)
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    top_k: int | None = Field(default=None, ge=-1)
    min_p: float | None = Field(default=None, ge=0.0, le=1.0)
    repetition_penalty: float | None = Field(default=None, gt=0.0)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop: NonEmpty | list[NonEmpty] | None = None
    stop_token_ids: list[Annotated[int, Field(ge=0)]] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = False
    n: Literal[1] | None = Field(default=1, description="one answer a request")
    # Known to OpenAI's clients, of no effect here unless said otherwise by a refusal.
    presence_penalty: float | None = Field(default=0.0, ge=0.0, le=0.0)
    frequency_penalty: float | None = Field(default=0.0, ge=0.0, le=0.0)
    logit_bias: dict[str, float] | None = Field(default=None, max_length=0)
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    def check(self) -> None:
        """Rules over more than one field; ApiError 400."""
        if self.stream_options is not None and not self.stream:
            raise ApiError(400, "stream_options needs stream = true", param="stream_options")

    def num_logprobs(self) -> int | None:
        """How many log-probabilities to give beside each token's own; None for none at all."""
        raise NotImplementedError

    def sampling(self, default_max_tokens: int | None) -> SamplingParams:
        """The engine's parameters; what the engine refuses becomes a 400 that names the field."""
        given = {
            name: value
            for name in (
                "min_tokens", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "stop",
                "stop_token_ids", "include_stop_str_in_output", "ignore_eos",
            )
            if (value := getattr(self, name)) is not None
        }  # fmt: skip
        max_tokens = default_max_tokens if self.max_tokens is None else self.max_tokens
        temperature = 1.0 if self.temperature is None else self.temperature
        try:
            return SamplingParams(
                temperature=temperature,
                max_tokens=max_tokens,
                logprobs=self.num_logprobs(),
                **given,
            )
        except ValueError as error:
            raise refused(error) from error

    @property
    def options(self) -> StreamOptions:
        """The stream's options, those of the standard if none were sent."""
        return self.stream_options or StreamOptions()


class CompletionRequest(GenerateRequest):
    """POST /v1/completions: a text or its token ids. One prompt a request."""

    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: int | None = Field(default=None, ge=0, le=20)
    best_of: Literal[1] | None = None
    echo: Literal[False] | None = None
    suffix: None = None

    def one_prompt(self) -> str | list[int]:
        """The prompt; a list of exactly one is taken as that one."""
        prompt: Any = self.prompt
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            if len(prompt) > 1:
                raise ApiError(400, "one prompt a request: send several requests", param="prompt")
            prompt = prompt[0]
        if not prompt:
            raise ApiError(400, "prompt is empty: at least one token is needed", param="prompt")
        return prompt  # type: ignore[no-any-return]

    def num_logprobs(self) -> int | None:
        return self.logprobs


class TextPart(Strict):
    """A piece of a message's content; text is the only kind."""

    type: Literal["text"]
    text: str


class Message(Strict):
    """One turn. Content may be a list of text parts, which are joined."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart] | None = None
    name: str | None = None

    def plain(self) -> dict[str, str]:
        """Role and text, as the tokenizer's chat template takes them."""
        content = self.content
        if isinstance(content, list):
            content = "".join(part.text for part in content)
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": content or ""}


class ResponseFormat(Strict):
    """Plain text is the only format."""

    type: Literal["text"]


class ChatRequest(GenerateRequest):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=MAX_TOKENS_LIMIT)
    logprobs: bool | None = False
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    response_format: ResponseFormat | None = None
    tools: list[Any] | None = Field(default=None, max_length=0)
    tool_choice: Literal["none", "auto"] | None = None
    modalities: list[Literal["text"]] | None = None

    def check(self) -> None:
        super().check()
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs = true", param="top_logprobs")
        if self.max_completion_tokens is not None:
            if self.max_tokens not in (None, self.max_completion_tokens):
                raise ApiError(
                    400,
                    "max_tokens and max_completion_tokens say different numbers",
                    param="max_tokens",
                )
            self.max_tokens = self.max_completion_tokens

    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


def parse(kind: type[Body], raw: bytes) -> Body:
    """Read a body; malformed JSON, invalid UTF-8 and wrong types are an ApiError 400."""
    try:
        body = kind.model_validate_json(raw)
    except ValidationError as error:
        raise _explain(error) from error
    body.check()
    return body


def refused(error: ValueError) -> ApiError:
    """A 400 from the engine's own words; the field is in them ("SamplingParams.top_p = ...")."""
    found = re.match(r"\w+\.(\w+) = ", str(error))
    return ApiError(400, str(error), param=found.group(1) if found else None)


def _explain(error: ValidationError) -> ApiError:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    first = problems[0]
    # Fields of this API have plain names; the rest of a path names union members.
    path = [str(part) for part in first["loc"]]
    param = path[0] if path else None
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not valid JSON: {first['msg']}", code="invalid_json")
    if first["type"] == "extra_forbidden":
        message = f"unknown field {'.'.join(path)!r}"
    else:
        same = [p["msg"] for p in problems if p["loc"][:1] == first["loc"][:1]]
        message = f"{param}: " + " or ".join(dict.fromkeys(same[:4]))
    return ApiError(400, message, param=param)

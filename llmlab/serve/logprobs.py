"""Log-probabilities in the two shapes of the OpenAI API."""

from __future__ import annotations

from typing import Any

from llmlab.serve.loop import Output


def chat_logprobs(outputs: list[Output], tokenizer: Any) -> dict[str, Any]:
    raise NotImplementedError


def completion_logprobs(outputs: list[Output], tokenizer: Any, offset: int) -> dict[str, Any]:
    raise NotImplementedError

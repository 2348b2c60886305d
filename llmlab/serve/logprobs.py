"""Log-probabilities in the two shapes of the OpenAI API."""

from __future__ import annotations

from typing import Any

from llmlab.serve.engine_like import Output

LOWEST = -9999.0  # JSON has no infinity; vLLM prints this number too


def chat_logprobs(outputs: list[Output], tokenizer: Any) -> dict[str, Any]:
    """{"content": one entry a token}; bytes is null where a token is a part of a character."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        text = tokenizer.decode([token_id])
        raw = None if "\ufffd" in text else list(text.encode())
        return {"token": text, "logprob": max(logprob, LOWEST), "bytes": raw}

    content = [
        {**entry(one.token_id, one.logprob), "top_logprobs": [entry(*pair) for pair in one.top]}
        for output in outputs
        for one in output.logprobs or ()
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(outputs: list[Output], tokenizer: Any, offset: int) -> dict[str, Any]:
    """Parallel lists; offset: characters of the answer before these outputs.

    text_offset is where a token's own text begins; text held back is counted where it appears.
    """
    lists: dict[str, Any] = {
        "tokens": [],
        "token_logprobs": [],
        "top_logprobs": [],
        "text_offset": [],
    }
    for output in outputs:
        for one in output.logprobs or ():
            top = {tokenizer.decode([token]): max(logprob, LOWEST) for token, logprob in one.top}
            lists["tokens"].append(tokenizer.decode([one.token_id]))
            lists["token_logprobs"].append(max(one.logprob, LOWEST))
            lists["top_logprobs"].append(top)
            lists["text_offset"].append(offset)
        offset += len(output.text)
    return lists

"""The answers: one JSON object, or a stream of server-sent events, in OpenAI's shapes.

Every engine output becomes one frame, even if its text is still held back (an open UTF-8
character, a possible stop string): who counts tokens by usage must see them arrive.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any

from llmlab.serve.engine_like import Output
from llmlab.serve.errors import ApiError
from llmlab.serve.logprobs import chat_logprobs, completion_logprobs
from llmlab.serve.loop import Stream
from llmlab.serve.protocol import ChatRequest, CompletionRequest, GenerateRequest

Json = dict[str, Any]
DONE = b"data: [DONE]\n\n"


def frame(data: Json) -> bytes:
    """One server-sent event; JSON has no raw line breaks, so one data line is enough."""
    return (
        b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
    )


class Answer:
    """What the two endpoints share: head, usage, the loop over the outputs."""

    kind = ""
    chunk_kind = ""

    def __init__(self, body: GenerateRequest, stream: Stream, tokenizer: Any) -> None:
        self.body = body
        self.stream = stream
        self.tokenizer = tokenizer
        self.completion_tokens = 0
        self.created = int(time.time())

    def head(self, kind: str) -> Json:
        """What every object and every frame begins with."""
        return {
            "id": self.stream.request_id,
            "object": kind,
            "created": self.created,
            "model": self.body.model,
        }

    def usage(self) -> Json:
        """Token counts so far; cached_tokens: prompt tokens found in the prefix cache."""
        record = self.stream.record
        prompt = (record.prompt_tokens or 0) if record else 0
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self.completion_tokens,
            "total_tokens": prompt + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": record.cached_tokens if record else 0},
        }

    def choice(self, output: Output) -> Json:
        """The choice of one streamed frame."""
        raise NotImplementedError

    def whole(self, outputs: list[Output]) -> Json:
        """The choice of an answer in one piece."""
        raise NotImplementedError

    def chunk(self, choice: Json) -> bytes:
        """One frame, with the counts that `stream_options` asks for."""
        data = {**self.head(self.chunk_kind), "choices": [choice]}
        options = self.body.options
        if options.continuous_usage_stats:
            data["usage"] = self.usage()
        elif options.include_usage:
            data["usage"] = None
        return frame(data)

    def opening(self) -> bytes:
        """Bytes sent as soon as the engine has taken the request."""
        return b""

    async def frames(self) -> AsyncIterator[bytes]:
        """The events of a stream; no [DONE] at its end if the engine failed or the reader left."""
        if opening := self.opening():
            yield opening
        ended = False
        try:
            async for output in self.stream:
                self.completion_tokens += len(output.token_ids)
                ended = output.finish_reason is not None
                yield self.chunk(self._finish(self.choice(output), output))
        except ApiError as error:
            yield frame(error.body())
            return
        if ended:
            if self.body.options.include_usage:
                yield frame({**self.head(self.chunk_kind), "choices": [], "usage": self.usage()})
            yield DONE

    async def complete(self) -> Json | None:
        """The whole answer, or None if its reader left before the end."""
        outputs = [output async for output in self.stream]
        if not outputs or outputs[-1].finish_reason is None:
            return None
        self.completion_tokens = sum(len(output.token_ids) for output in outputs)
        choice = self._finish(self.whole(outputs), outputs[-1])
        return {**self.head(self.kind), "choices": [choice], "usage": self.usage()}

    def _finish(self, choice: Json, output: Output) -> Json:
        choice["finish_reason"] = output.finish_reason
        choice["stop_reason"] = output.stop_reason
        return choice

    def _token_ids(self, outputs: list[Output]) -> Json:
        if not self.body.return_token_ids:
            return {}
        return {"token_ids": [token for output in outputs for token in output.token_ids]}


class CompletionAnswer(Answer):
    """A text that goes on."""

    kind = chunk_kind = "text_completion"
    body: CompletionRequest

    def __init__(self, body: CompletionRequest, stream: Stream, tokenizer: Any) -> None:
        super().__init__(body, stream, tokenizer)
        self._offset = 0

    def choice(self, output: Output) -> Json:
        return self.whole([output])

    def whole(self, outputs: list[Output]) -> Json:
        text = "".join(output.text for output in outputs)
        logprobs = None
        if self.body.logprobs is not None:
            logprobs = completion_logprobs(outputs, self.tokenizer, self._offset)
        self._offset += len(text)
        return {"index": 0, "text": text, "logprobs": logprobs, **self._token_ids(outputs)}


class ChatAnswer(Answer):
    """A message of the assistant."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    body: ChatRequest

    def opening(self) -> bytes:
        delta = {"role": "assistant", "content": ""}
        return self.chunk({"index": 0, "delta": delta, "logprobs": None, "finish_reason": None})

    def choice(self, output: Output) -> Json:
        return {
            "index": 0,
            "delta": {"content": output.text},
            "logprobs": self._logprobs([output]),
            **self._token_ids([output]),
        }

    def whole(self, outputs: list[Output]) -> Json:
        text = "".join(output.text for output in outputs)
        return {
            "index": 0,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": self._logprobs(outputs),
            **self._token_ids(outputs),
        }

    def _logprobs(self, outputs: list[Output]) -> Json | None:
        return chat_logprobs(outputs, self.tokenizer) if self.body.logprobs else None

"""What a streamed answer says: which frames carry tokens, how many, and how it ended.

Only a frame with tokens is a token event. Role, empty, finish, usage and [DONE] frames are not,
and are counted apart. How many tokens a frame carries is decided once for the whole stream, from
the first of these that covers every frame with text:

    usage_growth   the server sent a cumulative count with each frame
    token_ids      the frame lists its token ids
    logprobs       the frame lists its tokens' log-probabilities
    one_per_frame  the final count equals the number of frames with text, so each carried one
    unknown        else: k is None, and no per-token gap is made up
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from llmlab.trace import Channel, TokenEvent


@dataclass(slots=True)
class Piece:
    """One frame that may carry tokens: its stamp, channel, text and what it says of its count."""

    t: int
    channel: Channel
    has_text: bool
    growth: int | None = None
    ids: int | None = None
    logprobs: int | None = None


@dataclass
class AnswerReader:
    """Takes the data of each event with its stamp; tells the token events when all is read."""

    pieces: list[Piece] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    text: list[str] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None
    done: bool = False
    error: str | None = None
    _reported: int = 0

    def take(self, data: str, t: int) -> None:
        """One event's data. What is not JSON of the expected shape becomes the error."""
        if data.strip() == "[DONE]":
            self.done = True
            self.kinds["done"] += 1
            return
        try:
            self._take(json.loads(data), t)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            self._fail(f"a frame that is no completion chunk: {error}")

    def _fail(self, reason: str) -> None:
        self.kinds["error"] += 1
        self.error = self.error or reason

    def _take(self, frame: dict[str, Any], t: int) -> None:
        if frame.get("error"):
            self._fail(f"error frame: {error_message(frame)}")
            return
        growth = self._grow(frame.get("usage"))
        choices = frame.get("choices") or []
        if not choices:
            self.kinds["usage" if frame.get("usage") else "empty"] += 1
            return
        choice = choices[0]
        channel, text = _text_of(choice)
        reason = _text(choice.get("finish_reason"))
        self.finish_reason = reason or self.finish_reason
        ids, logprobs = choice.get("token_ids"), _count_logprobs(choice.get("logprobs"))
        carries = bool(text) or bool(growth) or bool(ids) or bool(logprobs)
        if carries:
            self.kinds[channel if text else "held_back"] += 1
            num_ids = None if ids is None else len(ids)
            self.pieces.append(Piece(t, channel, bool(text), growth, num_ids, logprobs))
            if channel == "content":
                self.text.append(text)
        elif reason:
            self.kinds["finish"] += 1
        else:
            self.kinds["role" if "role" in (choice.get("delta") or {}) else "empty"] += 1

    def _grow(self, usage: dict[str, Any] | None) -> int | None:
        """Tokens since the last count, or None if this frame brings none."""
        if not usage:
            return None
        total = _count(usage.get("completion_tokens"))
        self.usage = usage  # a mapping, or the line before has raised
        if total is None:
            return None
        growth = total - self._reported
        self._reported = total
        return growth

    @property
    def completion_tokens(self) -> int | None:
        """The server's final count, if it gave one."""
        return _count(self.usage.get("completion_tokens"))

    @property
    def prompt_tokens(self) -> int | None:
        """As the server counted them, if it did."""
        return _count(self.usage.get("prompt_tokens"))

    @property
    def cached_tokens(self) -> int:
        """Of the prompt, those found in the server's cache; 0 if it does not say."""
        details = self.usage.get("prompt_tokens_details")
        return (_count(details.get("cached_tokens")) if isinstance(details, dict) else 0) or 0

    def k_source(self) -> str:
        """Which of the ways of counting covers this stream; "none" if nothing was to count."""
        if not self.pieces:
            return "none"
        with_text = [piece for piece in self.pieces if piece.has_text] or self.pieces
        if all(piece.growth is not None for piece in with_text):
            return "usage_growth"
        if all(piece.ids is not None for piece in with_text):
            return "token_ids"
        if all(piece.logprobs is not None for piece in with_text):
            return "logprobs"
        if len(with_text) == self.completion_tokens:
            return "one_per_frame"
        return "unknown"

    def events(self) -> list[TokenEvent]:
        """The token events; frames of one stamp and channel are one event."""
        source = self.k_source()
        events: list[TokenEvent] = []
        for piece in self.pieces:
            k = _k(piece, source)
            if k == 0:
                continue
            last = events[-1] if events else None
            if last is not None and (last.t, last.channel) == (piece.t, piece.channel):
                last.k = None if k is None or last.k is None else last.k + k
            else:
                events.append(TokenEvent(piece.t, k, piece.channel))
        return events


def _count(value: Any) -> int | None:
    """A count as it should be, or None for whatever else a server may send."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if is_count else None


def _k(piece: Piece, source: str) -> int | None:
    if source == "usage_growth":
        return max(piece.growth or 0, 0)
    if source == "token_ids":
        return piece.ids or 0
    if source == "logprobs":
        return piece.logprobs or 0
    if not piece.has_text:
        return 0
    return 1 if source == "one_per_frame" else None


def _text_of(choice: dict[str, Any]) -> tuple[Channel, str]:
    """Channel and text of a choice, chat or completions, streamed or whole."""
    if "text" in choice:
        return "content", _text(choice["text"])
    delta = choice.get("delta") or choice.get("message") or {}
    reasoning = delta.get("reasoning_content") or delta.get("reasoning")
    if reasoning:
        return "reasoning", _text(reasoning)
    if delta.get("tool_calls"):
        return "tool", json.dumps(delta["tool_calls"])
    return "content", _text(delta.get("content"))


def _text(value: Any) -> str:
    """A text, "" for null; what is neither makes no frame."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{value!r:.60} where a text should be")
    return value or ""


def _count_logprobs(logprobs: dict[str, Any] | None) -> int | None:
    if not logprobs:
        return None
    listed = logprobs.get("content", logprobs.get("tokens"))
    return None if listed is None else len(listed)


def error_message(body: Any, limit: int = 300) -> str:
    """The message of an error body, in whichever of the usual shapes it comes."""
    error = body.get("error", body) if isinstance(body, dict) else body
    message = error.get("message") if isinstance(error, dict) else error
    return str(message)[:limit]

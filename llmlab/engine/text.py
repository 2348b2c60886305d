"""A request's text as it streams: whole characters only, and never a part of a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from llmlab.engine.tokenizer import Detokenizer


class TextStream:
    """Detokenises one request and watches for its stop strings.

    Text that could be the beginning of a stop string is held back: at most the longest stop
    string less one character. `stopped` is the stop string that was found, if any.
    """

    def __init__(
        self, detokenizer: Detokenizer, stop: Sequence[str] = (), *, include_stop: bool = False
    ) -> None:
        self._detokenizer = detokenizer
        self._stop = stop
        self._include = include_stop
        self._held = ""
        self.stopped: str | None = None

    def push(self, token_id: int, *, may_stop: bool = True) -> str:
        """Text that is certain after this token. `may_stop` False: too early for a stop string."""
        return self._take(self._detokenizer.push(token_id), may_stop)

    def flush(self) -> str:
        """The end of generation: everything held back, once."""
        if self.stopped is not None:
            return ""
        text = self._take(self._detokenizer.flush(), True)
        text, self._held = text + self._held, ""
        return text

    def _take(self, new: str, may_stop: bool) -> str:
        if not self._stop or self.stopped is not None:
            return new if self.stopped is None else ""
        if not may_stop:
            # What came too early is out of reach for a stop string, whole or in part.
            text, self._held = self._held + new, ""
            return text
        text = self._held + new
        found = [(at, -len(s), s) for s in self._stop if (at := text.find(s)) >= 0]
        if found:
            at, _, self.stopped = min(found)
            self._held = ""
            return text[: at + len(self.stopped)] if self._include else text[:at]
        keep = held_length(text, self._stop)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def held_length(text: str, stop: Sequence[str]) -> int:
    """Length of the longest end of `text` that begins, but does not complete, a stop string."""
    longest = min(len(text), max(map(len, stop)) - 1)
    for size in range(longest, 0, -1):
        if any(s.startswith(text[-size:]) for s in stop if len(s) > size):
            return size
    return 0

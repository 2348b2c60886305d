"""Server-sent events, as the WHATWG standard reads them, from bytes in any cut.

https://html.spec.whatwg.org/multipage/server-sent-events.html, section 9.2.6. An event is given
out with the chunk that completes it, even if that chunk ends in a CR whose LF is still to come,
so that its stamp is that chunk's. This module knows neither JSON nor clocks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LINE_END = re.compile(rb"\r\n|\n|\r")
BOM = b"\xef\xbb\xbf"
MAX_EVENT = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Event:
    """One dispatched event. `event` is "message" if the server named none."""

    data: str
    event: str = "message"
    id: str = ""


class SSEDecoder:
    """Feed it bytes; it gives the events they complete. What is incomplete at the end is dropped.

    max_event: bytes of one event or line before ValueError, so that a server that never ends a
    line cannot fill the memory.
    """

    def __init__(self, max_event: int = MAX_EVENT) -> None:
        self._max_event = max_event
        self._tail = b""  # an unfinished line
        self._first = True  # a byte order mark may still come
        self._after_cr = False  # a LF now would be the rest of a CRLF
        self._data: list[str] = []
        self._size = 0
        self._event = ""
        self._id = ""

    def feed(self, chunk: bytes) -> list[Event]:
        """Events completed by these bytes."""
        if not chunk:
            return []  # nothing came: what stood before it is still what stands before the next
        if self._after_cr:
            self._after_cr = False
            if chunk.startswith(b"\n"):
                chunk = chunk[1:]
        buffer = self._tail + chunk
        if self._first:
            if len(buffer) < len(BOM) and BOM.startswith(buffer):
                self._tail = buffer
                return []
            buffer = buffer.removeprefix(BOM)
            self._first = False
        *lines, self._tail = LINE_END.split(buffer)
        self._after_cr = buffer.endswith(b"\r")
        if len(self._tail) + self._size > self._max_event:
            raise ValueError(f"a server-sent event is larger than {self._max_event} bytes")
        return [event for line in lines if (event := self._line(line)) is not None]

    def _line(self, line: bytes) -> Event | None:
        if not line:
            return self._dispatch()
        name, _, raw = line.partition(b":")
        value = raw.removeprefix(b" ").decode("utf-8", "replace")
        if name == b"data":
            self._data.append(value)
            self._size += len(raw)
            if self._size > self._max_event:
                raise ValueError(f"a server-sent event is larger than {self._max_event} bytes")
        elif name == b"event":
            self._event = value
        elif name == b"id" and "\0" not in value:
            self._id = value
        return None  # comments (empty name), retry and unknown fields say nothing to us

    def _dispatch(self) -> Event | None:
        data, name = self._data, self._event
        self._data, self._event, self._size = [], "", 0
        return Event("\n".join(data), name or "message", self._id) if data else None

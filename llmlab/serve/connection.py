"""uvicorn's HTTP/1.1 protocol, with a patience: clients that dawdle are cut off.

uvicorn times idle kept-alive connections only. Two more clocks run here: one from the first byte
(or the connect) to the end of a request's headers, and one while an answer lies unread.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from llmlab.serve.errors import ApiError


class GuardedProtocol(H11Protocol):
    """Limits in seconds; `guarded_protocol` sets them, as uvicorn makes the objects itself."""

    header_timeout: float
    write_timeout: float
    _header_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._time_headers()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._time_headers()

    def _time_headers(self) -> None:
        """The clock runs while a part of a request's headers is there, and no longer."""
        if self.conn.their_state is not h11.IDLE:
            _cancel(self._header_timer)
            self._header_timer = None
        elif self._header_timer is None and self.conn.trailing_data[0]:
            self._await_headers()

    def _await_headers(self) -> None:
        self._header_timer = self.loop.call_later(self.header_timeout, self._too_slow)

    def _too_slow(self) -> None:
        self._header_timer = None
        if not self.transport.is_closing():
            self.send_error(408, f"the request's headers took over {self.header_timeout:g} s")

    def pause_writing(self) -> None:
        super().pause_writing()
        # abort(), not close(): close() would wait for the reader we have given up on.
        self._write_timer = self.loop.call_later(self.write_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._write_timer)
        self._write_timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._header_timer)
        self._header_timer = None
        _cancel(self._write_timer)
        self._write_timer = None
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self.send_error(400, msg)

    def send_error(self, status: int, message: str) -> None:
        """Answer what never became a request, in the API's shape, and close."""
        body = json.dumps(ApiError(status, message).body()).encode()
        head: list[tuple[Any, Any]] = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        for event in (
            h11.Response(status_code=status, headers=head),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            try:
                self.transport.write(self.conn.send(event) or b"")
            except h11.LocalProtocolError:  # an answer is under way already
                break
        self.transport.close()


def guarded_protocol(header_timeout: float, write_timeout: float) -> type[H11Protocol]:
    """A protocol class for `uvicorn.Config(http=...)` with these limits, in seconds."""
    limits = header_timeout, write_timeout

    class Limited(GuardedProtocol):
        header_timeout, write_timeout = limits

    return Limited


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()

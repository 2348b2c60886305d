"""An httpx transport that stamps every socket read once, before anything looks at the bytes.

Several frames that came in one read share its stamp: they arrived together, whatever the parser
makes of them later. Proxies and redirects are not followed: what is measured is the named server.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import cached_property
from typing import Any

import httpcore
import httpx

Clock = Callable[[], int]
KEEPALIVE_S = 15.0
Place = tuple[bytes, bytes, int | None]
WIRE_ERRORS = (
    httpcore.NetworkError,
    httpcore.TimeoutException,
    httpcore.ProtocolError,
    httpx.TransportError,
)


class StampedStream(httpcore.AsyncNetworkStream):
    """A connection that keeps (stamp in ns, bytes) of each read since the last request's bytes."""

    def __init__(self, inner: httpcore.AsyncNetworkStream, clock: Clock) -> None:
        self._inner = inner
        self._clock = clock
        self.reads: list[tuple[int, int]] = []

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._inner.read(max_bytes, timeout)
        self.reads.append((self._clock(), len(data)))
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self.reads = []  # a new list: the last response keeps its own
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        inner = await self._inner.start_tls(ssl_context, server_hostname, timeout)
        return StampedStream(inner, self._clock)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _StampedBackend(httpcore.AsyncNetworkBackend):
    def __init__(self, clock: Clock) -> None:
        self._inner = httpcore.AnyIOBackend()
        self._clock = clock

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        inner = await self._inner.connect_tcp(host, port, timeout, local_address, socket_options)
        return StampedStream(inner, self._clock)

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


class _Body(httpx.AsyncByteStream):
    """A response's bytes; when closed, its connection is free for the next request."""

    def __init__(self, inner: Any, on_close: Callable[[], Awaitable[None]]) -> None:
        self._inner = inner
        self._on_close = on_close

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._inner:
            yield part

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            await self._on_close()


class StampedTransport(httpx.AsyncBaseTransport):
    """Plain HTTP/1.1 over stamped connections; `reads_of(response)` gives a response's stamps.

    The pool is a plain stack, without a limit. httpcore's own looks at every connection for every
    other one at each request, which at 256 streams takes the client longer than the server.
    """

    def __init__(self, clock: Clock = time.perf_counter_ns) -> None:
        self._backend = _StampedBackend(clock)
        self._idle: dict[Place, list[httpcore.AsyncHTTPConnection]] = {}

    @cached_property
    def _ssl_context(self) -> ssl.SSLContext:
        """Made when it is first needed: reading every certificate authority takes a while."""
        return httpx.create_ssl_context()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        target = httpcore.URL(
            scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
        )
        idle = self._idle.setdefault((url.raw_scheme, url.raw_host, url.port), [])
        connection = await self._connection(target.origin, idle)
        try:
            response = await connection.handle_async_request(
                httpcore.Request(
                    method=request.method,
                    url=target,
                    headers=request.headers.raw,
                    content=request.stream,
                    extensions=request.extensions,
                )
            )
        except BaseException:
            await connection.aclose()
            raise
        return httpx.Response(
            response.status,
            headers=response.headers,
            stream=_Body(response.stream, lambda: self._release(connection, idle)),
            extensions=response.extensions,
        )

    async def _connection(
        self, origin: httpcore.Origin, idle: list[httpcore.AsyncHTTPConnection]
    ) -> httpcore.AsyncHTTPConnection:
        """An idle connection that the server has not closed, else a new one."""
        while idle:
            connection = idle.pop()
            if not connection.has_expired():
                return connection
            await connection.aclose()
        return httpcore.AsyncHTTPConnection(
            origin,
            ssl_context=self._ssl_context if origin.scheme == b"https" else None,
            keepalive_expiry=KEEPALIVE_S,
            network_backend=self._backend,
        )

    async def _release(
        self, connection: httpcore.AsyncHTTPConnection, idle: list[httpcore.AsyncHTTPConnection]
    ) -> None:
        if connection.is_idle():
            idle.append(connection)
        else:
            await connection.aclose()

    async def aclose(self) -> None:
        for idle in self._idle.values():
            while idle:
                await idle.pop().aclose()


def reads_of(response: httpx.Response) -> list[tuple[int, int]]:
    """(stamp, bytes) of the socket reads that carried this response so far; grows as it is read."""
    stream = response.extensions["network_stream"]
    if not isinstance(stream, StampedStream):
        raise TypeError("this response did not come through a StampedTransport")
    return stream.reads

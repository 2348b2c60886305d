"""An httpx transport that stamps every socket read once, before anything looks at the bytes.

Several frames that came in one read share its stamp: they arrived together, whatever the parser
makes of them later. Proxies and redirects are not followed: what is measured is the named server.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import httpcore
import httpx

Clock = Callable[[], int]
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
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._inner:
            yield part

    async def aclose(self) -> None:
        await self._inner.aclose()


class StampedTransport(httpx.AsyncBaseTransport):
    """Plain HTTP/1.1 over stamped connections; `reads_of(response)` gives a response's stamps."""

    def __init__(
        self, max_connections: int | None = None, clock: Clock = time.perf_counter_ns
    ) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=httpx.create_ssl_context(),
            max_connections=max_connections,
            keepalive_expiry=15.0,
            network_backend=_StampedBackend(clock),
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        response = await self._pool.handle_async_request(
            httpcore.Request(
                method=request.method,
                url=httpcore.URL(
                    scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
                ),
                headers=request.headers.raw,
                content=request.stream,
                extensions=request.extensions,
            )
        )
        return httpx.Response(
            response.status,
            headers=response.headers,
            stream=_Body(response.stream),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


def reads_of(response: httpx.Response) -> list[tuple[int, int]]:
    """(stamp, bytes) of the socket reads that carried this response so far; grows as it is read."""
    stream = response.extensions["network_stream"]
    if not isinstance(stream, StampedStream):
        raise TypeError("this response did not come through a StampedTransport")
    return stream.reads

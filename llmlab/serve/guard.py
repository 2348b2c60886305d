"""The door: who may come in, and with how much. Plain ASGI, before any route is looked at."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llmlab.serve.errors import ApiError
from llmlab.serve.settings import ServeConfig, is_loopback

OPEN_PATHS = ("/health",)  # a load balancer asks without a key


class Guard:
    """Checks the key, the Host header and the body's size and pace; stamps the arrival."""

    def __init__(self, app: ASGIApp, config: ServeConfig, clock: Callable[[], int]) -> None:
        self.app = app
        self.config = config
        self.clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope["t_arrival"] = self.clock()
        try:
            headers: list[tuple[bytes, bytes]] = scope["headers"]
            self._check_host(headers)
            self._check_key(scope["path"], headers)
            body = await self._read_body(scope, headers, receive)
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        except ConnectionResetError:
            return  # it left before it had asked
        await self.app(scope, _Replay(body, receive), send)

    def _check_host(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Without a key, only names of this machine: a web page elsewhere must not reach us."""
        if self.config.api_key is not None:
            return
        host = _header(headers, b"host").decode("latin-1")
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if not is_loopback(name):
            raise ApiError(403, "Host is not this machine; start the server with an API key")

    def _check_key(self, path: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        key = self.config.api_key
        if key is None or path in OPEN_PATHS:
            return
        given = _header(headers, b"authorization")
        # Digests have one length and are compared in constant time: nothing of the key leaks.
        if not hmac.compare_digest(_digest(given), _digest(b"Bearer " + key.encode())):
            raise ApiError(
                401,
                "wrong or missing API key: send it as 'Authorization: Bearer ...'",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    async def _read_body(
        self, scope: Scope, headers: Iterable[tuple[bytes, bytes]], receive: Receive
    ) -> bytes:
        limit = self.config.max_body_bytes
        length = _header(headers, b"content-length")
        if length.isdigit() and int(length) > limit:
            raise _too_large(limit)
        body = bytearray()
        try:
            async with asyncio.timeout(self.config.body_timeout):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ConnectionResetError
                    body += message.get("body", b"")
                    if len(body) > limit:
                        raise _too_large(limit)
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            raise ApiError(
                408,
                f"the body took over {self.config.body_timeout:g} s",
                headers={"Connection": "close"},
            ) from None
        if body:
            kind = _header(headers, b"content-type").split(b";")[0].strip().lower()
            if kind != b"application/json":
                raise ApiError(415, "send the body as Content-Type: application/json")
        return bytes(body)


class _Replay:
    """A receive() that gives the body once, and from then on what the connection says."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        return await self._receive()


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()


def _header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes:
    return next((value for key, value in headers if key == name), b"")


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is larger than {limit} bytes", code="body_too_large")

"""A raw HTTP server that answers as it is told: exact bytes, exact pauses, or a cut."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def frame(data: dict | str) -> bytes:
    text = data if isinstance(data, str) else json.dumps(data)
    return f"data: {text}\n\n".encode()


def token(text: str, **choice) -> dict:
    return {"choices": [{"index": 0, "text": text, "finish_reason": None, **choice}]}


def usage(n: int, prompt: int = 5, **more) -> dict:
    return {"prompt_tokens": prompt, "completion_tokens": n, **more}


DONE = frame("[DONE]")


def http_chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


@dataclass
class Stub:
    """script(request number) gives the pieces to send: bytes, seconds to pause, or "cut"."""

    script: Callable[[int], list]
    url: str = ""
    requests: list[bytes] = field(default_factory=list)
    sent_at: list[list[int]] = field(default_factory=list)

    def handle(self, connection: socket.socket) -> None:
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while request := self._read(connection):
                self.requests.append(request)
                stamps: list[int] = []
                self.sent_at.append(stamps)
                for piece in self.script(len(self.requests) - 1):
                    if piece == "cut":
                        return
                    if isinstance(piece, float):
                        time.sleep(piece)
                        continue
                    stamps.append(time.perf_counter_ns())
                    with contextlib.suppress(OSError):
                        connection.sendall(piece)

    def _read(self, connection: socket.socket) -> bytes:
        raw = b""
        while b"\r\n\r\n" not in raw:
            part = connection.recv(65536)
            if not part:
                return b""
            raw += part
        head, _, body = raw.partition(b"\r\n\r\n")
        lengths = [
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        ]
        while lengths and len(body) < lengths[0]:
            body += connection.recv(65536)
        return head + b"\r\n\r\n" + body


@contextlib.contextmanager
def stub_server(script: Callable[[int], list] | list) -> Iterator[Stub]:
    stub = Stub(script if callable(script) else lambda _: script)
    listener = socket.create_server(("127.0.0.1", 0))
    stub.url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=stub.handle, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield stub
    finally:
        listener.close()


def stream(*frames: bytes, gap: float = 0.0) -> list:
    """A streamed answer, each frame in a write of its own."""
    pieces: list = [HEAD]
    for one in frames:
        if gap:
            pieces.append(gap)
        pieces.append(http_chunk(one))
    return [*pieces, b"0\r\n\r\n"]

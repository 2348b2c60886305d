"""Running the application on a socket: in the foreground, or in a thread of this process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn

from llmlab.serve.app import create_app
from llmlab.serve.connection import guarded_protocol
from llmlab.serve.engine_like import EngineLike
from llmlab.serve.settings import ServeConfig

MAX_HEADER_BYTES = 32 * 1024


class _Server(uvicorn.Server):
    """uvicorn's server, but a signal drains and returns instead of ending the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        old = {sig: signal.signal(sig, self._on_signal) for sig in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sig, handler in old.items():
                signal.signal(sig, handler)

    def _on_signal(self, sig: int, frame: FrameType | None) -> None:
        self._captured_signals.append(sig)
        self.force_exit = self.should_exit  # a second signal does not wait
        self.should_exit = True

    @property
    def interrupted(self) -> bool:
        return signal.SIGINT in self._captured_signals


def bind(config: ServeConfig) -> socket.socket:
    """The listening socket. OSError if the address is taken or not ours."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # The protocol is named because asyncio turns Nagle's delay off only where it is: without, a
    # small frame waits up to 40 ms for the acknowledgement of the one before.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((config.host.strip("[]"), config.port))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener


def base_url(listener: socket.socket) -> str:
    """Where a listening socket is reached: "http://127.0.0.1:8000"."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _server(engine: EngineLike, config: ServeConfig) -> _Server:
    return _Server(
        uvicorn.Config(
            create_app(engine, config),
            http=guarded_protocol(config.header_timeout, config.write_timeout),
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_level="warning",
            access_log=False,
            server_header=False,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=max(1, round(config.drain_timeout)),
        )
    )


def serve(
    engine: EngineLike,
    config: ServeConfig,
    on_ready: Callable[[str], None] = lambda url: None,
) -> int:
    """Serve until SIGINT or SIGTERM, then drain. Returns the exit status: 0, or 130 on SIGINT."""
    listener = bind(config)
    server = _server(engine, config)

    async def run() -> None:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        if server.started:
            on_ready(base_url(listener))
        await serving

    asyncio.run(run())
    return 130 if server.interrupted else 0


@contextlib.contextmanager
def running(engine: EngineLike, config: ServeConfig | None = None) -> Iterator[str]:
    """A server in a thread of this process, on a free port; gives its base URL.

    Leaving the block drains it. The engine belongs to the server inside the block.
    """
    config = config or ServeConfig(port=0)
    listener = bind(config)
    server = _server(engine, config)
    thread = threading.Thread(
        target=lambda: asyncio.run(server.serve(sockets=[listener])), name="server", daemon=True
    )
    thread.start()
    try:
        while not server.started:
            if not thread.is_alive():
                raise RuntimeError("the server did not start; its log says why")
            thread.join(0.01)
        yield base_url(listener)
    finally:
        server.should_exit = True
        thread.join(config.drain_timeout + 70)

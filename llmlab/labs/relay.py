"""A made-up distance: a relay on loopback that holds every byte for half a round trip."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit


@contextlib.contextmanager
def far_away(base_url: str, rtt_ms: float) -> Iterator[str]:
    """A base URL that leads to the same server, rtt_ms further away.

    Each byte waits rtt_ms / 2 in each direction; bandwidth is not limited, and connecting costs
    nothing extra (a real network also asks for a round trip there, TLS for more).
    """
    if not 0 <= rtt_ms <= 5000:
        raise ValueError(f"rtt_ms = {rtt_ms!r}: must be 0 to 5000")
    target = urlsplit(base_url)
    loop = asyncio.new_event_loop()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(target.hostname, target.port)
        ways = ((reader, up_writer), (up_reader, writer))
        with contextlib.suppress(asyncio.CancelledError):  # the relay is closing
            await asyncio.gather(*(_pass_on(*way, rtt_ms / 2000) for way in ways))

    async def start() -> asyncio.Server:
        return await asyncio.start_server(one, "127.0.0.1", 0)

    # In a thread from the start: a notebook's own thread already runs a loop.
    thread = threading.Thread(target=loop.run_forever, name="relay", daemon=True)
    thread.start()
    try:
        server = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            asyncio.run_coroutine_threadsafe(_close(server), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float
) -> None:
    """Copy one direction; each piece leaves delay_s after it came, and pieces never queue up."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def read() -> None:
        data = b"more"
        while data:
            try:
                data = await reader.read(65536)
            except OSError:
                data = b""  # a reset ends the stream like a close
            pieces.put_nowait((loop.time() + delay_s, data))

    reading = asyncio.create_task(read())
    try:
        with contextlib.suppress(OSError):
            while True:
                due, data = await pieces.get()
                await asyncio.sleep(due - loop.time())
                if not data:
                    break
                writer.write(data)
                await writer.drain()
    finally:
        reading.cancel()
        writer.close()


async def _close(server: asyncio.Server) -> None:
    server.close()
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)

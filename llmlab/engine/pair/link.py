"""The link between a prefill and a decode worker: control messages and tensors.

Control: JSON lines over a TCP connection on loopback, proved by a secret that only the two workers
know. Tensors: `torch.distributed`, "gloo" between CPUs. "nccl" between two GPUs goes the same way,
but was never run here. Every header says which tensor follows it, so both sides agree on the order.
A peer that is gone, or silent for the time-out, raises LinkLost.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import select
import socket
from collections import deque
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from llmlab.engine.pair.protocol import Message

PREFILL, DECODE = 0, 1
LONGEST_LINE = 1 << 24
# Tensors on their way at once: more would only fill memory, the wire takes one after the other.
WINDOW = 16


class LinkLost(ConnectionError):
    """The other worker is gone or does not answer."""


class Link:
    """One worker's end. `send` may be called from two threads, the rest from one each."""

    def __init__(self, sock: socket.socket, peer: int, timeout_s: float) -> None:
        sock.settimeout(timeout_s)
        self.sock = sock
        self.peer = peer
        self.timeout = timedelta(seconds=timeout_s)
        self.bytes_sent = 0
        self.bytes_received = 0
        self._buffer = b""
        self._flying: deque[tuple[Any, torch.Tensor]] = deque()

    def send(self, message: Message) -> None:
        """One control message."""
        try:
            self.sock.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise LinkLost(f"the other worker does not listen: {error}") from error

    def receive(self, wait_s: float) -> list[Message]:
        """Control messages that are there; waits for the first one at most so long."""
        if b"\n" not in self._buffer:
            try:
                if not select.select([self.sock], [], [], wait_s)[0]:
                    return []
                data = self.sock.recv(1 << 16)
            except (OSError, ValueError) as error:
                raise LinkLost(f"the connection broke: {error}") from error
            if not data:
                raise LinkLost("the other worker closed the connection")
            self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        if len(self._buffer) > LONGEST_LINE:
            raise LinkLost("the other worker sends something that is no message")
        return [json.loads(line) for line in lines]

    def send_tensor(self, tensor: torch.Tensor) -> None:
        """Hand a contiguous tensor to the wire and go on; at most WINDOW are on their way."""
        try:
            self._flying.append((dist.isend(tensor, self.peer), tensor))
            self.bytes_sent += tensor.numel() * tensor.element_size()
            while len(self._flying) > WINDOW:
                self._flying.popleft()[0].wait(self.timeout)
        except RuntimeError as error:
            raise LinkLost(f"a tensor could not be sent: {_first_line(error)}") from error

    def flush(self) -> None:
        """Wait until everything has left."""
        try:
            while self._flying:
                self._flying.popleft()[0].wait(self.timeout)
        except RuntimeError as error:
            raise LinkLost(f"a tensor could not be sent: {_first_line(error)}") from error

    def receive_tensor(self, tensor: torch.Tensor) -> None:
        """Fill a contiguous tensor with the next one the other side sent."""
        try:
            work = dist.irecv(tensor, self.peer)
            if work is not None:
                work.wait(self.timeout)
        except RuntimeError as error:
            raise LinkLost(f"a tensor did not come whole: {_first_line(error)}") from error
        self.bytes_received += tensor.numel() * tensor.element_size()

    def close(self) -> None:
        """End the connection; the other side sees it at once."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


def _first_line(error: Exception) -> str:
    """What happened, without the place in gloo's source and its guesses after that."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[\S*\] ", "", line).split(". This is")[0][:200]


def loopback_name() -> str:
    """The loopback interface: "lo" on Linux, "lo0" on macOS."""
    names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    if not names:
        raise ValueError("no loopback interface found: the two workers talk over it only")
    return min(names, key=len)


@contextlib.contextmanager
def connect(
    rank: int, store: Any, timeout_s: float, rendezvous_s: float, backend: str = "gloo"
) -> Iterator[Link]:
    """Join the pair as PREFILL or DECODE; the process group is destroyed at the end.

    store: where both meet. rendezvous_s: most time to wait for the other one, which may still load
    its model; timeout_s: the same for every later message.
    """
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = loopback_name()
    dist.init_process_group(
        backend,
        store=dist.PrefixStore("tensors", store),  # type: ignore[attr-defined]
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=rendezvous_s),
    )
    link = Link(_control(rank, store, rendezvous_s), 1 - rank, timeout_s)
    try:
        yield link
    finally:
        link.close()
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


def _control(rank: int, store: Any, wait_s: float) -> socket.socket:
    """The decode worker listens on a free port, the prefill worker comes with the secret."""
    if rank == PREFILL:
        port, secret = store.get("control").decode().split()
        sock = socket.create_connection(("127.0.0.1", int(port)), wait_s)
        sock.sendall(secret.encode())
    else:
        secret = secrets.token_hex(16)
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(wait_s)
            store.set("control", f"{server.getsockname()[1]} {secret}")
            sock = _first_with(server, secret, wait_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _first_with(server: socket.socket, secret: str, wait_s: float) -> socket.socket:
    """The first caller that knows the secret; others are hung up on."""
    while True:
        sock, _ = server.accept()
        sock.settimeout(wait_s)
        with contextlib.suppress(OSError):
            if secrets.compare_digest(sock.recv(len(secret), socket.MSG_WAITALL), secret.encode()):
                return sock
        sock.close()


def file_store(path: Path) -> Any:
    """Rendezvous through a file in a folder of the user's own: nothing listens for it."""
    return dist.FileStore(str(path), 2)  # type: ignore[attr-defined]

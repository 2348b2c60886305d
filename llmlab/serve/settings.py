"""What the operator of a server may set. No secrets in its repr, no address without a key."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from llmlab.config import require, require_int

MIN_KEY_LENGTH = 16


@dataclass(frozen=True)
class ServeConfig:
    """Limits of the HTTP side; the engine's own are in EngineConfig.

    port: 0 takes a free one. api_key: needed unless host is a loopback address.
    max_body_bytes: larger bodies get 413. max_queue: requests in the house beyond max_num_seqs
    before 429. max_streams: open streaming answers before 429. header_timeout, body_timeout:
    seconds a client may take to send them. write_timeout: seconds a client may leave its answer
    unread before it is cut off. drain_timeout: seconds that running answers get on SIGTERM.
    trace_requests, trace_steps: how many ended requests and steps /trace remembers.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    model_name: str = "tiny"
    api_key: str | None = field(default=None, repr=False)
    max_body_bytes: int = 4 * 2**20
    max_queue: int = 256
    max_streams: int = 512
    header_timeout: float = 10.0
    body_timeout: float = 30.0
    write_timeout: float = 30.0
    drain_timeout: float = 30.0
    trace_requests: int = 10_000
    trace_steps: int = 100_000

    def __post_init__(self) -> None:
        require_int("ServeConfig", "port", self.port, 0, 65535)
        for name in ("max_body_bytes", "max_streams", "trace_requests", "trace_steps"):
            require_int("ServeConfig", name, getattr(self, name), 1)
        require_int("ServeConfig", "max_queue", self.max_queue, 0)
        for name in ("header_timeout", "body_timeout", "write_timeout", "drain_timeout"):
            value = getattr(self, name)
            require(0 < value < 86_400, "ServeConfig", name, value, "seconds in (0, 86400)")
        if self.api_key is not None:
            printable = self.api_key.isascii() and self.api_key.isprintable()
            good = printable and " " not in self.api_key and len(self.api_key) >= MIN_KEY_LENGTH
            # The value stays out of the message: it is a secret even when it is a bad one.
            allowed = f"{MIN_KEY_LENGTH} or more printable ASCII characters without spaces"
            require(good, "ServeConfig", "api_key", "(not shown)", allowed)
        if not is_loopback(self.host) and self.api_key is None:
            raise ValueError(
                f"ServeConfig.host = {self.host!r}: an address that others can reach needs an API "
                "key (LLMLAB_API_KEY or --api-key-file); 127.0.0.1 does not"
            )


def is_loopback(host: str) -> bool:
    """True for localhost, 127.0.0.0/8 and ::1; any other name may resolve to anywhere."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False

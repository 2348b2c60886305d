"""A load generator for any OpenAI-compatible endpoint. It writes the common trace.

Open loop: each request is sent at its absolute intended time, and latencies can be taken from
that time, so a slow server or a late generator is never flattered. Closed loop: as many requests
in flight as there are clients. The API key is sent, and appears nowhere else.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

from llmlab.measure.exchange import exchange
from llmlab.measure.wire import Clock, StampedTransport
from llmlab.trace import RequestRecord, Trace

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]
TokenCounter = tuple[str, Callable[[str], int]]

PATHS = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
}


@dataclass(frozen=True)
class Call:
    """One request to send. t_sched_ns: ns from the start, None in a closed loop.

    prompt: text, token ids (completions only) or chat messages. body: more JSON fields. The
    client leaves cancel_after_ns after the actual send, or with cancel_after_tokens tokens.
    """

    request_id: str
    prompt: Prompt
    max_tokens: int
    class_name: str = "default"
    t_sched_ns: int | None = None
    cancel_after_ns: int | None = None
    cancel_after_tokens: int | None = None
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Endpoint:
    """Where and how to send. `api` is "completions" or "chat".

    timeout_s: of a whole request, after which the client leaves (reason "client_timeout").
    continuous_usage: ask for the count in every frame (vLLM and this lab's server know it).
    """

    base_url: str
    model: str
    api: str = "completions"
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    stream: bool = True
    continuous_usage: bool = False
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.base_url)
            fits = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # an address or a port that cannot be
            fits = False
        if not fits:
            raise ValueError(
                f"base_url {self.base_url!r}: give http://HOST:PORT or https://HOST, without /v1"
            )
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("base_url: no user, password, query or fragment belongs in it")
        if self.api not in PATHS:
            raise ValueError(f"api = {self.api!r}: must be one of {', '.join(PATHS)}")

    @property
    def url(self) -> str:
        return self.base_url.rstrip("/").removesuffix("/v1") + PATHS[self.api]

    def request_headers(self) -> dict[str, str]:
        """With the key, so not for the eye."""
        # A compressed stream arrives in lumps of the compressor's making.
        headers = {"Accept-Encoding": "identity", **self.headers}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        return headers

    def hide(self, text: str) -> str:
        """The text without the key and the extra headers, should a server have echoed them."""
        for secret in (self.api_key, *self.headers.values()):
            if secret:
                text = text.replace(secret, "***")
        return text

    def request_body(self, call: Call) -> dict[str, Any]:
        """The call as this API's JSON; fields of `call.body` go before the others."""
        body: dict[str, Any] = {"model": self.model, "max_tokens": call.max_tokens}
        if self.api == "chat":
            is_text = isinstance(call.prompt, str)
            body["messages"] = (
                [{"role": "user", "content": call.prompt}] if is_text else list(call.prompt)
            )
        else:
            body["prompt"] = call.prompt if isinstance(call.prompt, str) else list(call.prompt)
        if self.stream:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True}
            if self.continuous_usage:
                body["stream_options"]["continuous_usage_stats"] = True
        return {**body, **call.body}


class LoadClient:
    """Sends calls to one endpoint. `trace` and `texts` grow as answers come in.

    count_tokens: (name, function) of a tokenizer, used where the server reports no count.
    on_end: told of each request that is over. keep_text: keep the answers in `texts`.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        count_tokens: TokenCounter | None = None,
        on_end: Callable[[RequestRecord], None] | None = None,
        keep_text: bool = False,
        clock: Clock = time.perf_counter_ns,
    ) -> None:
        self.endpoint = endpoint
        self.count_tokens = count_tokens
        self.clock = clock
        self.trace = Trace(
            meta={
                "source": "client",
                "simulated": False,
                "base_url": endpoint.base_url,
                "api": endpoint.api,
                "model": endpoint.model,
            }
        )
        self.texts: dict[str, str] = {}
        self.k_sources: Counter[str] = Counter()
        self._keep_text = keep_text
        self._on_end = on_end

    async def run(
        self,
        calls: Iterable[Call],
        *,
        max_concurrency: int | None = None,
        duration_s: float | None = None,
        drain: bool = True,
    ) -> Trace:
        """Send all calls and wait for their answers.

        Calls with t_sched_ns go out at their times (open loop), the others as soon as one of
        max_concurrency clients is free (closed loop). duration_s: send nothing later than that;
        drain False also cuts off what is in flight then. If this coroutine is cancelled, requests
        in flight stay in the trace as such.
        """
        limit = asyncio.Semaphore(max_concurrency) if max_concurrency else None
        transport = StampedTransport(clock=self.clock)
        async with httpx.AsyncClient(transport=transport, timeout=None) as http:  # noqa: S113  (exchange() times each call)
            start = self.clock()
            self.trace.meta["t_start"] = start
            pacing = self._pace(http, calls, limit, start)
            tasks: set[asyncio.Task[None]] = set()
            bugs: list[BaseException] = []

            def over(task: asyncio.Task[None]) -> None:
                tasks.discard(task)
                if not task.cancelled() and (bug := task.exception()) is not None:
                    bugs.append(bug)

            try:
                try:
                    async with asyncio.timeout(duration_s):
                        async for task in pacing:
                            tasks.add(task)
                            task.add_done_callback(over)
                except TimeoutError:
                    if not drain:
                        self._cut(tasks)
                while tasks:
                    await asyncio.wait(tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                self._close_books()
        if bugs:
            raise bugs[0]
        return self.trace

    async def _pace(
        self,
        http: httpx.AsyncClient,
        calls: Iterable[Call],
        limit: asyncio.Semaphore | None,
        start: int,
    ) -> AsyncIterator[asyncio.Task[None]]:
        """Start each call at its absolute time, so that the cost of sending never adds up."""
        for call in calls:
            if call.t_sched_ns is not None:
                wait_ns = start + call.t_sched_ns - self.clock()
                if wait_ns > 0:
                    await asyncio.sleep(wait_ns / 1e9)
            elif limit is not None:
                await limit.acquire()  # the closed loop: wait for a free client
            yield asyncio.create_task(self._one(http, call, limit, start))

    async def _one(
        self,
        http: httpx.AsyncClient,
        call: Call,
        limit: asyncio.Semaphore | None,
        start: int,
    ) -> None:
        record = RequestRecord(call.request_id, call.class_name, max_tokens=call.max_tokens)
        if call.t_sched_ns is not None:
            record.t_sched = start + call.t_sched_ns
        self.trace.requests[call.request_id] = record
        try:
            if call.t_sched_ns is not None and limit is not None:
                await self._queue(record, limit)
            await exchange(self, http, call, record)
        finally:
            if limit is not None and record.outcome != "cancelled_before_send":
                limit.release()
            if self._on_end is not None and record.outcome != "in_flight":
                self._on_end(record)

    async def _queue(self, record: RequestRecord, limit: asyncio.Semaphore) -> None:
        """Wait for one of max_concurrency places; only the end of the run cuts this short."""
        try:
            await limit.acquire()
        except asyncio.CancelledError:
            record.outcome = "cancelled_before_send"
            record.reason = record.reason or "interrupted"
            record.t_end = self.clock()
            raise

    def keep(self, request_id: str, text: str) -> None:
        """Put an answer into `texts`, if they are wanted."""
        if self._keep_text:
            self.texts[request_id] = text

    def _cut(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        for record in self.trace.requests.values():
            if record.outcome == "in_flight":
                record.reason = "run_ended"
        for task in tasks:
            task.cancel()

    def _close_books(self) -> None:
        meta = self.trace.meta
        meta["submitted"] = len(self.trace.requests)
        meta["k_sources"] = dict(self.k_sources)
        meta["t_stop"] = self.clock()

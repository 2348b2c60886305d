"""A server to measure from outside: the lab's own as a process, or one named by its base URL.

    api = OwnApi(["--model", "tiny"])      # or other_api("https://HOST", "MODEL")
    trace = measure(api, workload)         # the client's trace
    inside = api.server_trace(trace)       # the server's own, of the same requests

A key comes from the environment alone and is shown nowhere.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import secrets
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import httpx

from llmlab.measure.calls import make_calls
from llmlab.measure.client import Endpoint, LoadClient
from llmlab.measure.workload import Workload
from llmlab.serve.child import child_server
from llmlab.trace import Trace

T = TypeVar("T")
KEY_VARIABLE = "OPENAI_API_KEY"


class Api:
    """An endpoint to measure. `is_own`: its server stands here and shows its trace."""

    is_own = False

    def __init__(self, endpoint: Endpoint, vocab_size: int | None = None) -> None:
        self.endpoint = endpoint
        self.vocab_size = vocab_size

    def server_trace(self, client: Trace) -> Trace | None:
        """The server's records of the client's requests, by the client's ids; None: not ours."""
        return None

    def stop(self) -> None:
        """Nothing to stop: somebody else's server."""


class OwnApi(Api):
    """`llmlab serve OPTIONS` as a child process; `stop` may be called twice.

    It is stopped at the latest when this process ends. RuntimeError if it does not start.
    """

    is_own = True

    def __init__(self, options: Sequence[str] = ()) -> None:
        self._open = contextlib.ExitStack()
        child = self._open.enter_context(child_server(options))
        self.process = child.process
        atexit.register(self.stop)
        try:
            card = _get(f"{child.base_url}/v1/models").json()["data"][0]
        except BaseException:
            self.stop()
            raise
        super().__init__(
            Endpoint(child.base_url, child.model, continuous_usage=True), card["vocab_size"]
        )

    def server_trace(self, client: Trace) -> Trace:
        """Read from /trace of the server itself, also where the client took a longer way."""
        text = _get(f"{self.endpoint.base_url}/trace").text
        whole = Trace.from_jsonl(text.splitlines(), "/trace")
        names = {f"cmpl-{name}": name for name in client.requests}  # refused ones are not there
        records = {names[key]: r for key, r in whole.requests.items() if key in names}
        return Trace(whole.meta, records)

    def stop(self) -> None:
        """Drain the server and end its process."""
        self._open.close()
        atexit.unregister(self.stop)


def other_api(base_url: str, model: str | None) -> Api:
    """Somebody's OpenAI-compatible endpoint; its key, if any, from $OPENAI_API_KEY."""
    if not model:
        raise ValueError(f"model = {model!r}: must be the name of a model at {base_url}")
    return Api(Endpoint(base_url, model, api="chat", api_key=os.environ.get(KEY_VARIABLE) or None))


def measure(api: Api, workload: Workload, *, via: str | None = None) -> Trace:
    """Send a closed-loop workload and wait for every answer. Costs money at a paid endpoint.

    via: another base URL that leads to the same server. Works inside a notebook, whose thread
    already has an event loop. ValueError for an open loop or if no request completed.
    """
    if workload.arrivals.kind != "closed":
        raise ValueError(
            f"workload.arrivals.kind = {workload.arrivals.kind!r}: must be 'closed', so that the "
            "concurrency is controlled"
        )
    calls = make_calls(
        workload.requests(),
        vocab_size=api.vocab_size,
        prefix=f"{secrets.token_hex(4)}-",
        ignore_eos=api.is_own,  # others may refuse fields they do not know
        body={"temperature": 0} if api.is_own else {},
    )
    endpoint = api.endpoint if via is None else replace(api.endpoint, base_url=via)
    client = LoadClient(endpoint)
    trace = beside(client.run(calls, max_concurrency=workload.arrivals.concurrency))
    records = list(trace.requests.values())
    if not any(record.outcome == "completed" for record in records):
        raise ValueError(f"no request completed at {endpoint.base_url}: {records[0].reason}")
    return trace


def beside(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in an event loop of a thread of its own; Ctrl-C cancels it."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(work)

    def run() -> None:
        with contextlib.suppress(BaseException):  # kept in the task, raised below
            loop.run_until_complete(task)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    thread = threading.Thread(target=run, name="load client", daemon=True)
    thread.start()
    try:
        thread.join()
    except KeyboardInterrupt:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        raise
    return task.result()


def _get(url: str) -> httpx.Response:
    return httpx.get(url, timeout=60, trust_env=False).raise_for_status()

"""The engine in a thread of its own, and the streams that carry its tokens to asyncio.

The HTTP side never touches the engine: it posts commands, and the engine's thread carries them
out between two steps. So an abort takes effect within one step, and no lock is held in a step.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from llmlab.sched.request import SamplingParams
from llmlab.serve.engine_like import EngineLike, Output
from llmlab.serve.errors import ApiError, out_of_memory, too_busy, unavailable
from llmlab.serve.prometheus import Metrics
from llmlab.trace import RequestRecord

log = logging.getLogger("llmlab.serve")


class Stream:
    """One request's outputs, in order, on the asyncio side. It ends after a finish reason."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.record: RequestRecord | None = None  # the engine's, once it has taken the request
        self._outputs: asyncio.Queue[Output | ApiError | None] = asyncio.Queue()

    def put(self, item: Output | ApiError | None) -> None:
        """None ends the stream without a finish: its reader has gone."""
        self._outputs.put_nowait(item)

    async def __aiter__(self) -> AsyncIterator[Output]:
        while (item := await self._outputs.get()) is not None:
            if isinstance(item, ApiError):
                raise item
            yield item
            if item.finish_reason is not None:
                return


class EngineLoop:
    """Owns the engine's thread. All methods without a leading _ belong to the asyncio side."""

    def __init__(
        self,
        engine: EngineLike,
        *,
        model_name: str,
        max_live: int,
        trace_requests: int,
        trace_steps: int,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.engine = engine
        self.clock = clock
        self.metrics = Metrics(model_name)
        self.max_live = max_live
        self._trace_requests = trace_requests
        self._trace_steps = trace_steps
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._streams: dict[str, Stream] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._dead: str | None = "the engine has not started"

    # -- asyncio side ---------------------------------------------------------------------

    def start(self) -> None:
        """Start the engine's thread; its outputs come to the loop that runs now."""
        self._loop = asyncio.get_running_loop()
        self._dead = None
        self._thread.start()

    async def stop(self) -> None:
        """End what is left, then the thread."""
        for request_id in list(self._streams):
            self.abort(request_id)
        self._dead = self._dead or "the server is closing"
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join, 60.0)

    @property
    def dead(self) -> str | None:
        """Why no request can be served, or None."""
        return self._dead

    @property
    def num_live(self) -> int:
        """Requests that are handed over and not over."""
        return len(self._streams)

    def knows(self, request_id: str) -> bool:
        """Whether an id is taken: by a request on its way to the engine, or in its trace."""
        return request_id in self._streams or request_id in self.engine.trace.requests

    async def submit(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str,
        class_name: str = "default",
        t_send: int | None = None,
    ) -> Stream:
        """Hand a request to the engine. ValueError: it refuses; ApiError: the house is full.

        From here on the request waits for the engine, also while a step runs that keeps it from
        being looked at: `t_queued` is now.
        """
        if self._dead is not None:
            raise unavailable(self._dead)
        if self.num_live >= self.max_live:
            raise too_busy(f"{self.num_live} requests are running or waiting, as many as allowed")
        if request_id in self._streams:
            raise ValueError(f"request id {request_id!r} is in use by a running request")
        stream = self._streams[request_id] = Stream(request_id)
        added = asyncio.get_running_loop().create_future()
        stamps = {"t_send": t_send, "t_queued": self.clock()}

        def add() -> None:
            try:
                self.engine.add(
                    prompt, params, request_id=request_id, class_name=class_name, **stamps
                )
                stream.record = self.engine.trace.requests[request_id]
            except Exception as error:
                self._post(_resolve, added, error)
            else:
                self._post(_resolve, added, None)

        self._commands.put(add)
        try:
            await added
        except BaseException as error:
            self._streams.pop(request_id, None)
            if not isinstance(error, Exception):  # cancelled: the engine may have taken it
                self._commands.put(lambda: self._abort(request_id))
            raise
        return stream

    def abort(self, request_id: str) -> None:
        """End a request, in any state, before the next step. Unknown ids are no error."""
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            stream.put(None)
            self._commands.put(lambda: self._abort(request_id))

    async def call(self, function: Callable[[EngineLike], Any]) -> Any:
        """Run a quick look at the engine between two steps, e.g. to copy its trace."""
        if not self._thread.is_alive():
            return function(self.engine)
        future = asyncio.get_running_loop().create_future()

        def run() -> None:
            try:
                result = function(self.engine)
            except Exception as error:
                self._post(_resolve, future, error)
            else:
                self._post(_resolve, future, None, result)

        self._commands.put(run)
        return await future

    def _deliver(self, outputs: Sequence[Output], failed: Mapping[str, str]) -> None:
        """failed: why the outputs with finish reason "error" are the last of their requests."""
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is None:
                continue  # it left while the step ran
            if output.finish_reason is not None:
                del self._streams[output.request_id]
            error = output.finish_reason == "error"
            stream.put(out_of_memory(failed[output.request_id]) if error else output)

    def _fail_all(self, reason: str) -> None:
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.put(ApiError(500, reason, type_="server_error"))

    # -- engine's thread ------------------------------------------------------------------

    def _post(self, function: Callable[..., None], *args: Any) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(function, *args)

    def _run(self) -> None:
        try:
            while self._obey():
                if self.engine.has_work:
                    self._step()
                else:
                    self._gauge()
        except Exception:
            log.exception("the engine stopped")
            self._dead = "the engine has stopped after an internal error"
            self._post(self._fail_all, self._dead)
            while (command := self._commands.get()) is not None:
                with contextlib.suppress(Exception):  # who waits behind a failed one is told too
                    command()

    def _obey(self) -> bool:
        """Carry out what was posted; wait for it if there is nothing else to do."""
        wait = not self.engine.has_work
        while True:
            try:
                command = self._commands.get(block=wait)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()
            wait = False

    def _step(self) -> None:
        engine, trace = self.engine, self.engine.trace
        steps_before = len(trace.steps)
        outputs = engine.step()
        failed = {
            output.request_id: trace.requests[output.request_id].reason or "no reason known"
            for output in outputs
            if output.finish_reason == "error"
        }
        for reason, count in Counter(failed.values()).items():
            log.error("%d requests failed: %s", count, reason)
        got_tokens = [output.request_id for output in outputs if output.token_ids]
        if len(trace.steps) > steps_before:
            self.metrics.on_step(trace.steps[-1], trace, got_tokens)
        for output in outputs:
            if output.finish_reason is not None:
                self.metrics.on_end(trace.requests[output.request_id], output.finish_reason)
        self._gauge()
        # After the count: who has an answer finds it in the next scrape.
        self._post(self._deliver, outputs, failed)
        self._prune()

    def _abort(self, request_id: str) -> None:
        record = self.engine.trace.requests.get(request_id)
        running = record is not None and record.outcome == "in_flight"
        self.engine.abort(request_id)
        if running and record is not None:
            self.metrics.on_end(record, "abort")
        self._gauge()

    def _gauge(self) -> None:
        counts = self.engine.scheduler
        used = counts.num_blocks_used / self.engine.config.num_blocks
        self.metrics.set_gauges(counts.num_running, counts.num_waiting, used)

    def _prune(self) -> None:
        """Forget the oldest ended requests and steps; in slices, so that it costs little."""
        trace = self.engine.trace
        if len(trace.steps) > self._trace_steps * 1.1 + 1:
            del trace.steps[: len(trace.steps) - self._trace_steps]
        excess = len(trace.requests) - self._trace_requests
        if excess > self._trace_requests * 0.1 + self.max_live:
            ended = (r.request_id for r in trace.requests.values() if r.outcome != "in_flight")
            for request_id in list(itertools.islice(ended, excess)):
                del trace.requests[request_id]


def _resolve(future: asyncio.Future[Any], error: BaseException | None, result: Any = None) -> None:
    if future.done():  # its waiter was cancelled
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)

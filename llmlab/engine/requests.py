"""The requests in an engine: who is there, what a step's tokens mean for each, how each one ends.

Not safe for threads by itself: the engine calls it under its lock.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count

from llmlab.config import require
from llmlab.engine import overlap
from llmlab.engine.live import Live, TokenOutput, make_request
from llmlab.engine.model import Model
from llmlab.engine.overlap import Flight
from llmlab.engine.recorder import Recorder
from llmlab.engine.sampler import Row, logprobs_of
from llmlab.sched.plan import Scheduler
from llmlab.sched.request import Request, SamplingParams
from llmlab.trace import RequestRecord


class Requests:
    """Everyone who was taken and has not ended. clock: integer ns."""

    def __init__(
        self, model: Model, scheduler: Scheduler, record: Recorder, clock: Callable[[], int]
    ) -> None:
        self.model, self.scheduler = model, scheduler
        self.clock, self._record = clock, record
        self._live: dict[str, Live] = {}
        self._count = count()

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._live

    def fresh_id(self) -> str:
        names = map("req-{}".format, self._count)
        return next(name for name in names if name not in self._record.trace.requests)

    # ------------------------------------------------------------ in

    def take(
        self,
        record: RequestRecord,
        ids: list[int],
        params: SamplingParams | None,
        priority: int,
        arrived: int,
    ) -> None:
        """From now on it waits for its turn; ValueError if it can have none."""
        name = record.request_id
        unused = name not in self._record.trace.requests
        require(unused, "Request", "request_id", name, "unused")
        request = make_request(self.model, name, ids, params, priority)
        self.scheduler.add(request)
        self._live[name] = Live(request, self.model.tokenizer)
        self._record.queued(record, request, arrived)

    def open_inbox(self, request_id: str) -> deque[TokenOutput]:
        """Where its outputs arrive from now on, whoever runs the steps."""
        inbox = self._live[request_id].inbox = deque()
        return inbox

    # ------------------------------------------------------------ a step

    def rows(self, sampled: Sequence[Request]) -> list[Row]:
        """What each one's draw depends on."""
        return [self._live[request.request_id].row() for request in sampled]

    def read(self, flight: Flight, tokens: Sequence[int]) -> list[TokenOutput]:
        """Text and finish reason of every sampled request that is still alive; `t` is unset."""
        outputs = []
        for row, (request, token) in enumerate(zip(flight.sampled, tokens, strict=True)):
            live = self._live.get(request.request_id)
            if live is None or live.request is not request:
                continue  # aborted, or over with the token before
            output = live.take(token, self.scheduler)
            wanted = request.params.logprobs
            if wanted is not None and flight.logits is not None:
                output.logprobs = [logprobs_of(flight.logits[row], token, wanted)]
            outputs.append(output)
        return outputs

    def hand_out(self, outputs: Sequence[TokenOutput], now: int) -> None:
        """Put outputs into inboxes and forget the requests that ended."""
        for output in outputs:
            live = self._live[output.request_id]
            if live.inbox is not None:
                live.inbox.append(output)
            if live.request.finished:
                self._record.finished(live.request, now)
                del self._live[output.request_id]

    # ------------------------------------------------------------ out

    def end(self, request_id: str) -> None:
        """Its client left. One that is no longer there changes nothing."""
        live = self._live.pop(request_id, None)
        if live is not None:
            if not self.scheduler.abort(request_id):  # over, but its last token is on its way
                live.request.finish_reason, live.request.stop_reason = "abort", None
            overlap.forget(live.request)
            self._record.finished(live.request, self.clock())

    def fail(self, requests: Sequence[Request], reason: str) -> list[TokenOutput]:
        """End requests that cannot be computed; the others go on."""
        outputs, now = [], self.clock()
        for request in requests:
            live = self._live.pop(request.request_id, None)
            if live is None:
                continue
            self.scheduler.abort(request.request_id)
            overlap.forget(request)
            request.finish_reason = "error"
            self._record.failed(request, reason, now)
            output = TokenOutput(request.request_id, [], live.text.flush(), now, "error")
            if live.inbox is not None:
                live.inbox.append(output)
            outputs.append(output)
        warnings.warn(reason, RuntimeWarning, stacklevel=4)
        return outputs

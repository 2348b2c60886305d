"""What is outside the simulated servers: clients that send, wait and leave, and the clock.

    send --network--> front end (one at a time) --queue--> first step ... step end --network--> seen
         t_send                              t_queued   t_first_scheduled              event.t

A world keeps the agenda of what will happen and the one trace; where a request goes, and from
where it is taken back, is left to the simulator that builds on it. No torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

from llmlab.sched.plan import StepPlan
from llmlab.sched.request import Request, SamplingParams
from llmlab.sim.load import Arrival, as_load
from llmlab.sim.step_time import NS, Constants
from llmlab.trace import RequestRecord, TokenEvent, Trace

if TYPE_CHECKING:
    from llmlab.sim.server import Server

CLIENT_LEFT, RUN_ENDED = "client_left", "run_ended"
Act = Callable[[int, Any], None]


@dataclass(slots=True, eq=False)
class Live:
    """A request that is somewhere between its send and its end."""

    record: RequestRecord
    request: Request
    arrival: Arrival
    queued: bool = False


class World(ABC):
    """The clients of one run, its clock `now` (ns) and its trace.

    shares_prefixes: prompts without ids of their own must differ, or a prefix cache finds them.
    """

    def __init__(self, constants: Constants, shares_prefixes: bool = False) -> None:
        self.trace = Trace()
        self.now = 0
        self.network = round(constants.network * NS)
        self.live: dict[str, Live] = {}
        self.leaves_after: dict[str, int] = {}  # tokens after which a client leaves
        self._constants = constants
        self._shares_prefixes = shares_prefixes
        self._front_end_free = 0
        # What will happen: (when the servers learn of it, order, what to do, with what).
        self._agenda: list[tuple[int, int, Act, Any]] = []
        self._entries = 0
        self._prompts: dict[int, list[int]] = {}

    def open(self, workload: Any) -> None:
        """Put a workload (anything `as_load` takes) on the agenda."""
        self._load = as_load(workload)
        for arrival in self._load.sent:
            self.at(arrival.t, self._send, arrival)
        if self._load.cut_at is not None:
            self.at(self._load.cut_at, self._cut, None)

    # -- what a simulator decides ------------------------------------------------------------

    @abstractmethod
    def accept(self, live: Live) -> None:
        """A request leaves the front end; ValueError if it can never run."""

    @abstractmethod
    def withdraw(self, live: Live) -> None:
        """Its client is gone: no server may go on with it."""

    # -- the agenda --------------------------------------------------------------------------

    @property
    def next_at(self) -> int | None:
        """When the next thing on the agenda happens; None if there is none."""
        return self._agenda[0][0] if self._agenda else None

    def at(self, t: int, act: Act, what: Any) -> None:
        """Let `act(t, what)` happen at `t`; entries of one instant keep their order."""
        heappush(self._agenda, (t, self._entries, act, what))
        self._entries += 1

    def catch_up(self) -> None:
        """Let everything happen that is on the agenda up to now, in the order of time."""
        while self._agenda and self._agenda[0][0] <= self.now:
            t, _, act, what = heappop(self._agenda)
            act(t, what)

    # -- clients -----------------------------------------------------------------------------

    def _send(self, t: int, arrival: Arrival) -> None:
        """A client sends; the front end takes requests one at a time."""
        name = f"r{len(self.trace.requests)}"
        constants = self._constants
        work = constants.preprocess + constants.preprocess_per_token * arrival.prompt_tokens
        start = max(t + self.network, self._front_end_free)
        self._front_end_free = queued = start + round(work * NS)
        record = RequestRecord(
            request_id=name,
            class_name=arrival.class_name,
            prompt_tokens=arrival.prompt_tokens,
            max_tokens=arrival.output_tokens,
            t_sched=t,
            t_send=t,
            t_queued=queued,
            completion_tokens=0,
            count_source="simulated",
        )
        params = SamplingParams(max_tokens=arrival.output_tokens, ignore_eos=True)
        request = Request(name, self._prompt(arrival), params, priority=arrival.priority)
        self.trace.requests[name] = record
        self.live[name] = live = Live(record, request, arrival)
        self.at(queued, self._queue, live)
        if arrival.cancel_after_ns is not None:
            left = t + arrival.cancel_after_ns
            self.at(left + self.network, self._leave, (live, left, CLIENT_LEFT))
        if arrival.cancel_after_tokens is not None:
            self.leaves_after[name] = arrival.cancel_after_tokens

    def _prompt(self, arrival: Arrival) -> list[int]:
        """Token ids; without ids of its own a prompt shares nothing with any other."""
        if arrival.prompt_token_ids is not None:
            return list(arrival.prompt_token_ids)
        if self._shares_prefixes:
            return [len(self.trace.requests)] * arrival.prompt_tokens
        # Nobody reads the ids, so prompts of one length can be one list.
        return self._prompts.setdefault(arrival.prompt_tokens, [0] * arrival.prompt_tokens)

    def _queue(self, t: int, live: Live) -> None:
        """The front end hands a request on; it may be refused."""
        if live.request.request_id not in self.live:
            return  # its client left meanwhile
        try:
            self.accept(live)
            live.queued = True
        except ValueError as error:
            live.record.outcome, live.record.reason = "rejected", str(error)
            live.record.t_queued = None
            self.over(live, t + self.network)

    def _leave(self, t: int, what: tuple[Live, int, str]) -> None:
        """A client is gone since `left`; what was sent to it after that reached nobody."""
        live, left, reason = what
        record, name = live.record, live.request.request_id
        if name not in self.live:
            return
        if live.queued:
            self.withdraw(live)
        else:
            record.t_queued = None
        while record.events and record.events[-1].t > left:
            record.events.pop()
        record.completion_tokens = len(record.events)
        record.outcome, record.finish_reason, record.reason = "cancelled", "abort", reason
        self.over(live, left)

    def _cut(self, t: int, what: None) -> None:
        """The run ends: nothing more is sent, and what is unfinished is cut off."""
        self._load.waiting.clear()
        clients = (self._send, self._queue, self._leave)
        self._agenda = [entry for entry in self._agenda if entry[2] not in clients]
        heapify(self._agenda)
        for live in list(self.live.values()):
            self._leave(t, (live, t, RUN_ENDED))

    # -- what the servers report -------------------------------------------------------------

    def computed(self, server: Server, plan: StepPlan, start: int) -> None:  # noqa: B027
        """A step that began at `start` is over now; its plan is not committed yet."""

    def emit(self, requests: Sequence[Request], events: list[TokenEvent]) -> None:
        """Give each live request these events; requests of one step share the event objects."""
        for request in requests:
            live = self.live.get(request.request_id)
            if live is None:
                continue
            record = live.record
            record.events.extend(events)
            record.completion_tokens = len(record.events)
            limit = self.leaves_after.get(request.request_id)
            if limit is not None and len(record.events) >= limit:
                del self.leaves_after[request.request_id]
                left = record.events[limit - 1].t
                self.at(left + self.network, self._leave, (live, left, CLIENT_LEFT))

    def finish(self, request: Request) -> None:
        """A server has written a request's last token."""
        live = self.live.get(request.request_id)
        if live is not None:
            live.record.outcome, live.record.finish_reason = "completed", request.finish_reason
            self.over(live, self.now + self.network)

    def over(self, live: Live, t_end: int) -> None:
        """A request has ended for its client, which may send the next one."""
        name = live.request.request_id
        live.record.t_end = t_end
        del self.live[name]
        self.leaves_after.pop(name, None)
        follower = self._load.follow_up(t_end)
        if follower is not None:
            self.at(follower.t, self._send, follower)

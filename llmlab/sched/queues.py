"""Who waits, and who is next. Taking any request out costs the same however many wait."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Protocol

from llmlab.sched.request import Request


class WaitingQueue(Protocol):
    """What a policy asks of the queue. `head` of an empty queue is a KeyError."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]: ...

    @property
    def head(self) -> Request: ...

    def push(self, request: Request) -> None: ...

    def put_back(self, request: Request) -> None: ...

    def remove(self, request: Request) -> None: ...


class FcfsQueue:
    """First come, first served; what was preempted goes back to the front."""

    def __init__(self) -> None:
        self._order: OrderedDict[str, Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._order.values())

    @property
    def head(self) -> Request:
        if not self._order:
            raise KeyError("nobody waits")
        return next(iter(self._order.values()))

    def push(self, request: Request) -> None:
        """To the end: a newcomer."""
        self._order[request.request_id] = request

    def put_back(self, request: Request) -> None:
        """To the front: it was running already."""
        self._order[request.request_id] = request
        self._order.move_to_end(request.request_id, last=False)

    def remove(self, request: Request) -> None:
        del self._order[request.request_id]


class PriorityQueue:
    """The smallest (priority, arrival) first; preempted requests find their old place again."""

    def __init__(self) -> None:
        self._members: dict[str, Request] = {}
        # Entries whose request was removed stay until they come up, or until they are the most.
        self._heap: list[tuple[int, int, Request]] = []

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Request]:
        return iter(sorted(self._members.values(), key=lambda r: (r.priority, r.arrival)))

    @property
    def head(self) -> Request:
        if not self._members:
            raise KeyError("nobody waits")
        while not self._is_member(self._heap[0]):
            heappop(self._heap)
        return self._heap[0][2]

    def push(self, request: Request) -> None:
        self._members[request.request_id] = request
        heappush(self._heap, (request.priority, request.arrival, request))

    put_back = push

    def remove(self, request: Request) -> None:
        del self._members[request.request_id]
        if self._heap[0][2] is request:
            heappop(self._heap)
        elif len(self._heap) > 2 * len(self._members) + 16:
            self._heap = [entry for entry in self._heap if self._is_member(entry)]
            heapify(self._heap)

    def _is_member(self, entry: tuple[int, int, Request]) -> bool:
        return self._members.get(entry[2].request_id) is entry[2]

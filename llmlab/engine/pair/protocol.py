"""Who may touch which blocks while keys and values move from one worker's pool to another's.

    decode side: KVReceiver                       prefill side: KVSender
    blocks taken and held
        ---- ask   name, prompt, first -------->  computes the prompt, step by step
        <--- layer name, layer, start, end -----  positions start .. end - 1 of one layer, and data
        <--- done  name ------------------------  blocks held
    hold ended, the request runs
        ---- ack   name ----------------------->  hold ended

Between "held" and "hold ended" nobody else gets the blocks. Any message may come twice, late or
not at all: a name is opened once and closed once, and what comes for a closed name changes
nothing. Silence has an end on both sides: a time-out closes the transfer, and the request is
computed where it is. No torch, no clock (`now` in ns is an argument), no socket.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple

from llmlab.sched.blocks import BlockManager

Message = dict[str, Any]
Send = Callable[[Message], None]


class Ended(NamedTuple):
    """A transfer is over for its request: reason None means that everything arrived."""

    name: str
    reason: str | None = None


@dataclass(eq=False)
class _Side:
    """What both sides have. blocks: of this side's pool; timeout_ns: how long silence may last."""

    blocks: BlockManager
    num_layers: int
    send: Send
    _: KW_ONLY
    timeout_ns: int
    _closed: set[str] = field(default_factory=set, init=False)


@dataclass(slots=True)
class Incoming:
    """One transfer at the decode side: positions first .. end - 1 of every layer are wanted.

    got[l]: positions of layer l before this one are in place. gave_up: its request is computed
    here meanwhile; the blocks stay held until the other side says that nothing more will come.
    """

    first: int
    end: int
    got: list[int]
    deadline: int
    gave_up: bool = False


@dataclass(eq=False)
class KVReceiver(_Side):
    """The decode side. `take` may be called from the thread that receives, the rest from one."""

    # A cancel was never answered: the other worker is to be given up.
    silent: bool = field(default=False, init=False)
    _open: dict[str, Incoming] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    @property
    def open(self) -> list[str]:
        """Transfers whose blocks are held."""
        return list(self._open)

    def ask(self, name: str, prompt: Sequence[int], first: int, now: int) -> None:
        """Have positions first .. len(prompt) - 1 sent. The blocks are held under `name`."""
        got = [first] * self.num_layers
        with self._lock:
            self._open[name] = Incoming(first, len(prompt), got, now + self.timeout_ns)
        self.send({"kind": "ask", "name": name, "prompt": list(prompt), "first": first})

    def take(
        self, name: str, layer: int, start: int, end: int, write: Callable[[], None], now: int
    ) -> bool:
        """Call `write` if this part is still wanted and nothing before it is missing."""
        with self._lock:
            entry = self._open.get(name)
            if entry is None or entry.gave_up or not 0 <= layer < self.num_layers:
                return False
            if not entry.first <= start <= entry.got[layer] or not start < end <= entry.end:
                return False
            write()
            entry.got[layer] = max(entry.got[layer], end)
            entry.deadline = now + self.timeout_ns
        return True

    def on(self, message: Message, now: int) -> list[Ended]:
        """Everything but `layer`. An unknown kind changes nothing."""
        name, kind = message.get("name", ""), message.get("kind")
        if kind == "alive":
            self._refresh(message["names"], now)
            return []
        entry = self._open.get(name)
        if kind == "done":
            if entry is None:
                if name in self._closed:  # the first acknowledgement may be lost
                    self.send({"kind": "ack", "name": name})
                return []
            self.send({"kind": "ack", "name": name})
            whole = all(got == entry.end for got in entry.got)
            reason = None if whole else "a part of its keys and values never came"
            return self._close(name, reason)
        if entry is not None and kind in ("refused", "cancelled"):
            return self._close(name, message.get("reason") or "the prefill worker stopped it")
        return []

    def cancel(self, name: str, now: int) -> None:
        """The request is gone or computed here: ask the other side to stop. Unknown: nothing."""
        entry = self._open.get(name)
        if entry is not None and not entry.gave_up:
            with self._lock:
                entry.gave_up, entry.deadline = True, now + self.timeout_ns
            self.send({"kind": "cancel", "name": name})

    def tick(self, now: int) -> list[Ended]:
        """Give up what was silent for too long."""
        late = [name for name, entry in self._open.items() if now > entry.deadline]
        ended = []
        for name in late:
            if self._open[name].gave_up:
                self.silent = True
                continue
            self.cancel(name, now)
            seconds = self.timeout_ns / 1e9
            ended.append(Ended(name, f"nothing came from the prefill worker for {seconds:g} s"))
        return ended

    def lost(self, reason: str) -> list[Ended]:
        """The link is gone: nothing will ever be written, so no block stays held."""
        return [ended for name in self.open for ended in self._close(name, reason)]

    def _close(self, name: str, reason: str | None) -> list[Ended]:
        with self._lock:
            entry = self._open.pop(name)
            self._closed.add(name)
        self.blocks.release(name)
        return [] if entry.gave_up else [Ended(name, reason)]

    def _refresh(self, names: Sequence[str], now: int) -> None:
        for name in names:
            entry = self._open.get(name)
            if entry is not None and not entry.gave_up:
                entry.deadline = now + self.timeout_ns


@dataclass(slots=True)
class Outgoing:
    """One transfer at the prefill side. sent[l]: positions of layer l before this one are sent."""

    first: int
    end: int
    sent: list[int]
    deadline: int | None = None  # set once everything is computed: when the blocks are freed anyway


@dataclass(slots=True)
class Orders:
    """What the prefill worker has to do after a message."""

    start: list[tuple[str, list[int]]] = field(default_factory=list)  # name and prompt
    stop: list[str] = field(default_factory=list)


@dataclass(eq=False)
class KVSender(_Side):
    """The prefill side; one thread."""

    unacknowledged: list[str] = field(default_factory=list, init=False)  # freed after a time-out
    _open: dict[str, Outgoing] = field(default_factory=dict, init=False)

    @property
    def open(self) -> list[str]:
        """Asked for and not over: waiting, computing, sending, or held until acknowledged."""
        return list(self._open)

    def on(self, message: Message) -> Orders:
        """Returns what to start and what to stop. An unknown kind changes nothing."""
        name, kind, orders = message.get("name", ""), message.get("kind"), Orders()
        known = name in self._open or name in self._closed
        if kind == "ask" and not known:
            first, prompt = message["first"], message["prompt"]
            self._open[name] = Outgoing(first, len(prompt), [first] * self.num_layers)
            orders.start.append((name, prompt))
        elif kind in ("ack", "cancel"):
            if self._close(name):
                orders.stop.append(name)
            if kind == "cancel":
                self._closed.add(name)  # an ask that comes after its cancel starts nothing
                self.send({"kind": "cancelled", "name": name})
        return orders

    def part(self, name: str, layer: int, computed: int) -> tuple[int, int] | None:
        """Positions start, end of this layer to send, once `computed` of them are in the cache.

        None: nothing new, or nobody wants it. Prefix-cache hits and what a preemption makes the
        engine compute again need no case of their own.
        """
        entry = self._open.get(name)
        if entry is None or entry.sent[layer] >= computed:
            return None
        start, entry.sent[layer] = entry.sent[layer], computed
        return start, computed

    def hold(self, name: str, block_ids: Sequence[int], now: int) -> None:
        """The last tokens are about to be computed: keep the blocks beyond the request's end."""
        entry = self._open.get(name)
        if entry is not None and entry.deadline is None:
            self.blocks.hold(name, block_ids)
            entry.deadline = now + self.timeout_ns

    def done(self, name: str, now: int) -> None:
        """Everything was handed to the link."""
        if name in self._open:
            self._open[name].deadline = now + self.timeout_ns
            self.send({"kind": "done", "name": name})

    def refuse(self, name: str, reason: str) -> None:
        """It can never be computed here."""
        self._close(name)
        self.send({"kind": "refused", "name": name, "reason": reason})

    def alive(self) -> None:
        """Say which transfers are still being worked on."""
        self.send({"kind": "alive", "names": self.open})

    def tick(self, now: int) -> None:
        """Free what nobody acknowledged in time."""
        for name, entry in list(self._open.items()):
            if entry.deadline is not None and now > entry.deadline:
                self._close(name)
                self.unacknowledged.append(name)

    def lost(self) -> list[str]:
        """The link is gone: every hold ends. Returns what need not be computed any more."""
        return [name for name in self.open if self._close(name)]

    def _close(self, name: str) -> bool:
        if self._open.pop(name, None) is None:
            return False
        self._closed.add(name)
        self.blocks.release(name)
        return True

"""Break a pair on purpose, to see what happens: for the lab and for the tests."""

from __future__ import annotations

import os
import signal

from llmlab.engine.pair.link import Link


class Fault:
    """kill: "prefill:during" and the like, or None; side: whose fault this is.

    Moments of the first transfer: before (asked for, nothing sent), during (half of the layers
    sent), after (all sent). "link:during" cuts the connection instead, "prefill:stop" freezes the
    prefill worker half-way: alive, but silent.
    """

    def __init__(self, kill: str | None, side: str, link: Link) -> None:
        who, _, self._moment = (kill or "").partition(":")
        self._mine = who == side or (who == "link" and side == "prefill")
        self._cuts = who == "link"
        self._freezes = self._moment == "stop"
        self._link = link

    def at(self, moment: str) -> bool:
        """Does nothing unless this is the moment. True: the link was cut."""
        wanted = "during" if self._freezes else self._moment
        if not self._mine or moment != wanted:
            return False
        if self._cuts:
            self._link.close()
            return True
        os.kill(os.getpid(), signal.SIGSTOP if self._freezes else signal.SIGKILL)
        return False

"""Waiting for a panel's job."""

from __future__ import annotations

import time

from llmlab.viz.live import LiveRun


def wait_idle(live: LiveRun, seconds: float = 30.0) -> None:
    """Until nothing runs in the background; a failure if that takes too long."""
    end = time.monotonic() + seconds
    while live.busy and time.monotonic() < end:
        time.sleep(0.002)
    assert not live.busy

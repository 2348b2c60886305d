"""How long a panel takes to answer a knob."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from typing import Any


def seconds_a_move(box: Any, values: Iterable[float]) -> float:
    """Median CPU seconds from a new value in a box to the drawn figure."""
    spans = []
    for value in values:
        begin = time.process_time()  # what others do on this machine does not count
        box.value = value
        spans.append(time.process_time() - begin)
    return statistics.median(spans)

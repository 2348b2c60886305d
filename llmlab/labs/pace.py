"""How much a lab computes: all of it for a learner, a little for a test run."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")


def pick(full: T, fast: T) -> T:
    """`full`, or `fast` where LLMLAB_FAST is set."""
    return fast if os.environ.get("LLMLAB_FAST") else full

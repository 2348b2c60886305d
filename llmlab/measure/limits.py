"""What a class of users was promised, and whether one request kept it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from llmlab.config import require
from llmlab.measure.per_request import RequestMetrics
from llmlab.measure.stats import percentile


@dataclass(frozen=True)
class Limits:
    """Latency limits in milliseconds; None = no limit. A value equal to its limit passes.

    gap_ms holds for the `gap_percentile`-th percentile of the gaps between tokens: of one
    request's gaps when a request is judged, of the pooled gaps when a class is.
    e2el_ms is vLLM's name for the end-to-end limit.
    """

    ttft_ms: float | None = None
    gap_ms: float | None = None
    gap_percentile: float = 95.0
    tpot_ms: float | None = None
    e2el_ms: float | None = None

    def __post_init__(self) -> None:
        for name in ("ttft_ms", "gap_ms", "tpot_ms", "e2el_ms"):
            value = getattr(self, name)
            fits = value is None or (_is_real(value) and value > 0)
            require(fits, "Limits", name, value, "a number of milliseconds > 0, or null")
        fits = _is_real(self.gap_percentile) and 0 < self.gap_percentile <= 100
        require(fits, "Limits", "gap_percentile", self.gap_percentile, "in (0, 100]")

    @property
    def any(self) -> bool:
        """True if at least one limit is set; without one there is no attainment."""
        return any(
            value is not None for value in (self.ttft_ms, self.gap_ms, self.tpot_ms, self.e2el_ms)
        )

    def misses(self, m: RequestMetrics) -> list[str]:
        """Names of the limits a completed request missed.

        Times run from the intended send where it is known, so that a late sender hides nothing.
        TTFT and E2E of an empty answer miss; TPOT and gaps of a one-token answer do not apply.
        Where tokens per event are unknown the raw event gaps are judged: the stricter reading.
        """
        ttft = m.ttft if m.ttft_from_schedule is None else m.ttft_from_schedule
        e2e = m.e2e if m.e2e_from_schedule is None else m.e2e_from_schedule
        gaps = m.event_gaps if m.itl is None else m.itl
        missed = []
        if self.ttft_ms is not None and (ttft is None or ttft > self.ttft_ms):
            missed.append("ttft_ms")
        if self.e2el_ms is not None and (e2e is None or e2e > self.e2el_ms):
            missed.append("e2el_ms")
        if self.tpot_ms is not None and m.tpot is not None and m.tpot > self.tpot_ms:
            missed.append("tpot_ms")
        gap = percentile(gaps, self.gap_percentile)
        if self.gap_ms is not None and gap is not None and gap > self.gap_ms:
            missed.append("gap_ms")
        return missed


def _is_real(value: object) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value)  # type: ignore[arg-type]

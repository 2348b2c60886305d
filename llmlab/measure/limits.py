"""What a class of users was promised, and whether one request kept it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmlab.config import is_real, require
from llmlab.measure import noted
from llmlab.measure.per_request import RequestMetrics
from llmlab.measure.stats import percentile
from llmlab.trace import Trace


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
            fits = value is None or (is_real(value) and value > 0)
            require(fits, "Limits", name, value, "a number of milliseconds > 0, or null")
        fits = is_real(self.gap_percentile) and 0 < self.gap_percentile <= 100
        require(fits, "Limits", "gap_percentile", self.gap_percentile, "in (0, 100]")

    @property
    def any(self) -> bool:
        """True if at least one limit is set; without one there is no attainment."""
        return any(
            value is not None for value in (self.ttft_ms, self.gap_ms, self.tpot_ms, self.e2el_ms)
        )

    def misses(self, m: RequestMetrics) -> list[str]:
        """Names of the limits a completed request missed.

        TTFT and E2E of an empty answer miss, and TTFT of one that was not streamed, which nobody
        saw begin; TPOT and gaps of a one-token answer do not apply.
        """
        missed = []
        ttft, e2e = m.ttft_judged, m.e2e_judged
        if self.ttft_ms is not None and (ttft is None or ttft > self.ttft_ms):
            missed.append("ttft_ms")
        if self.e2el_ms is not None and (e2e is None or e2e > self.e2el_ms):
            missed.append("e2el_ms")
        if self.tpot_ms is not None and m.tpot is not None and m.tpot > self.tpot_ms:
            missed.append("tpot_ms")
        if self.gap_ms is not None:
            gap = percentile(m.gaps_judged, self.gap_percentile)
            if gap is not None and gap > self.gap_ms:
                missed.append("gap_ms")
        return missed


GOODPUT_NAMES = {"ttft": "ttft_ms", "gap": "gap_ms", "tpot": "tpot_ms", "e2el": "e2el_ms"}


def parse_goodput(pairs: Sequence[str], class_names: Sequence[str]) -> dict[str, Limits]:
    """Limits by class from `ttft:700`, `gap:50`, ..., each for all classes or `chat.ttft:700`.

    The form is that of vLLM's --goodput (ms), with `gap` (p95 of the gaps) and classes added.
    """
    chosen: dict[str, dict[str, float]] = {name: {} for name in class_names}
    for pair in pairs:
        where, colon, value = pair.partition(":")
        class_name, _, key = where.rpartition(".")
        if not colon or key not in GOODPUT_NAMES:
            raise ValueError(
                f"--goodput {pair!r}: must be NAME:MILLISECONDS or CLASS.NAME:MILLISECONDS with "
                f"NAME one of {', '.join(GOODPUT_NAMES)}"
            )
        if class_name and class_name not in chosen:
            raise ValueError(
                f"--goodput {pair!r}: class {class_name!r} must be one of {', '.join(chosen)}"
            )
        try:
            limit = float(value)
        except ValueError:
            raise ValueError(f"--goodput {pair!r}: {value!r} must be a number") from None
        for name in [class_name] if class_name else chosen:
            chosen[name][GOODPUT_NAMES[key]] = limit
    return {name: Limits(**fields) for name, fields in chosen.items()}


def limits_of(trace: Trace) -> dict[str, Limits]:
    """The limits in the workload that the trace carries; {} if it carries none."""
    found: dict[str, Limits] = {}
    for traffic in noted.classes(trace):
        limits = traffic.get("limits")
        if isinstance(limits, dict):
            known = {key: limits[key] for key in Limits.__dataclass_fields__ if key in limits}
            found[str(traffic.get("name"))] = Limits(**known)
    return found

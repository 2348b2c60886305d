"""Limits of a class held against two runs: what was measured, and whether it held."""

from __future__ import annotations

from dataclasses import dataclass

from llmlab.measure.stats import percentile
from llmlab.measure.summary import Summary

PERCENTILE = 95.0  # of TTFT, TPOT and E2E against their limits; gaps bring their own


@dataclass(frozen=True)
class Check:
    """One limit of one class: what was measured in both runs (ms), and whether it held."""

    class_name: str
    figure: str
    limit: float
    baseline: float | None
    trial: float | None

    @property
    def baseline_holds(self) -> bool:
        return self.baseline is None or self.baseline <= self.limit

    @property
    def trial_holds(self) -> bool:
        """Equality holds; a figure that does not apply (no second token) holds."""
        return self.trial is None or self.trial <= self.limit


def check_limits(old: Summary, new: Summary) -> list[Check]:
    """Each stated limit of each class, held against baseline and trial."""
    checks = []
    for name, limits in old.limits.items():
        if name not in old.classes:
            continue
        wanted = (
            ("TTFT", "ttft", limits.ttft_ms, PERCENTILE),
            ("gap", "itl", limits.gap_ms, limits.gap_percentile),
            ("TPOT", "tpot", limits.tpot_ms, PERCENTILE),
            ("E2E", "e2e", limits.e2el_ms, PERCENTILE),
        )
        for label, figure, limit, p in wanted:
            if limit is not None:
                values = [_figure(summary, name, figure, p) for summary in (old, new)]
                checks.append(Check(name, f"{label} p{p:g}", limit, *values))
    return checks


def _figure(summary: Summary, class_name: str, figure: str, p: float) -> float | None:
    """A percentile over the completed requests of a class, times from the intended send."""
    samples: list[float] = []
    for m in summary.requests:
        if m.class_name != class_name or m.outcome != "completed":
            continue
        value = getattr(m, figure)
        if figure == "itl":
            samples += m.event_gaps if value is None else value
        else:
            scheduled = getattr(m, f"{figure}_from_schedule", None)
            value = value if scheduled is None else scheduled
            samples += [] if value is None else [value]
    return percentile(samples, p)

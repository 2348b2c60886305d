"""Limits of a class held against two runs: what was measured, and whether it held."""

from __future__ import annotations

from dataclasses import dataclass

from llmlab.measure.stats import percentile, percentile_name
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
            ("TTFT", "ttft_judged", limits.ttft_ms, PERCENTILE),
            ("gap", "gaps_judged", limits.gap_ms, limits.gap_percentile),
            ("TPOT", "tpot", limits.tpot_ms, PERCENTILE),
            ("E2E", "e2e_judged", limits.e2el_ms, PERCENTILE),
        )
        for label, key, limit, p in wanted:
            if limit is not None:
                values = [percentile(summary.samples(name, key), p) for summary in (old, new)]
                checks.append(Check(name, f"{label} {percentile_name(p)}", limit, *values))
    return checks

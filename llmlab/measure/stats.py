"""A population of samples in a few numbers, with the sample size beside every one of them.

Percentiles are numpy's "linear" (the value at rank (n-1)p, what vLLM's benchmark prints).
Undefined samples are counted, and enter nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

METHOD: Literal["linear"] = "linear"
FULL_P99 = 100  # under this many samples the slowest one or two decide the 99th percentile
DRAWN_AT_ONCE = 4_000_000  # samples held in memory by the bootstrap

Floats = NDArray[np.float64]


def percentile(samples: Sequence[float], p: float) -> float | None:
    """Linear percentile, p in 0..100; None for no samples."""
    return _percentiles(np.asarray(samples, dtype=np.float64), [p])[0]


def _percentiles(values: Floats, ps: Sequence[float]) -> list[float | None]:
    """All of them from one sort; each None for no samples."""
    for p in ps:
        if not 0 <= p <= 100:
            raise ValueError(f"percentile = {p!r}: must be in 0..100")
    if not values.size:
        return [None] * len(ps)
    found: list[float | None] = np.percentile(values, ps, method=METHOD).tolist()
    return found


def parse_percentiles(text: str) -> tuple[float, ...]:
    """vLLM's --metric-percentiles, "50,99", as numbers; ValueError outside 0..100."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if not values or not all(0 <= value <= 100 for value in values):
        raise ValueError(
            f"--metric-percentiles {text!r}: must be numbers in 0..100, with commas, like 50,95,99"
        )
    return values


def percentile_name(p: float) -> str:
    """95 -> "p95", 99.9 -> "p99.9"."""
    return f"p{p:g}"


@dataclass(frozen=True)
class Stat:
    """Mean, median, spread and the percentiles asked for of n samples; all None when n is 0.

    undefined: requests for which the figure has no value. std is the population's (ddof 0).
    ci: 95 % bootstrap interval by name ("mean", "p50", ...), empty unless asked for.
    """

    n: int
    undefined: int = 0
    mean: float | None = None
    median: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None
    percentiles: dict[str, float | None] = field(default_factory=dict)
    ci: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def thin_p99(self) -> bool:
        """True if the 99th percentile rests on fewer than 100 samples."""
        return self.n < FULL_P99

    @property
    def p50(self) -> float | None:
        return self.percentiles.get("p50")

    @property
    def p95(self) -> float | None:
        return self.percentiles.get("p95")

    @property
    def p99(self) -> float | None:
        return self.percentiles.get("p99")

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {"n": self.n, "undefined": self.undefined}
        out |= {"mean": self.mean, "std": self.std, "min": self.min, **self.percentiles}
        out |= {"max": self.max, "method": METHOD, "thin_p99": self.thin_p99}
        if self.ci:
            out["ci95"] = {name: list(pair) for name, pair in self.ci.items()}
        return out


@dataclass(frozen=True)
class Resampling:
    """How many bootstrap draws, and their seed; draws = 0 means no intervals."""

    draws: int = 0
    seed: int = 0


def describe(
    per_request: Sequence[float | Sequence[float] | None],
    percentiles: Sequence[float],
    resampling: Resampling | None = None,
) -> Stat:
    """Pool the samples of each request into one Stat.

    A request gives one number, a list of them (gaps; may be empty) or None (undefined).
    The bootstrap redraws requests, not gaps: the gaps of one request depend on each other.
    """
    resampling = resampling or Resampling()
    clusters = [x if isinstance(x, Sequence) else (x,) for x in per_request if x is not None]
    undefined = len(per_request) - len(clusters)
    pool = np.fromiter(chain.from_iterable(clusters), np.float64)
    median, *values = _percentiles(pool, [50, *percentiles])
    named = dict(zip(map(percentile_name, percentiles), values, strict=True))
    if pool.size == 0:
        return Stat(0, undefined, percentiles=named)
    return Stat(
        n=int(pool.size),
        undefined=undefined,
        mean=float(pool.mean()),
        median=median,
        std=float(pool.std()),
        min=float(pool.min()),
        max=float(pool.max()),
        percentiles=named,
        ci=_bootstrap(clusters, percentiles, resampling) if resampling.draws else {},
    )


def _bootstrap(
    per_request: Sequence[Sequence[float]], percentiles: Sequence[float], resampling: Resampling
) -> dict[str, tuple[float, float]]:
    """Percentile bootstrap (Efron 1979) over requests: the middle 95 % of the redrawn figure."""
    names = ["mean", *map(percentile_name, percentiles)]
    clusters = [np.asarray(x, np.float64) for x in per_request]
    single = all(cluster.size == 1 for cluster in clusters)
    redraw = _redraw_numbers if single else _redraw_clusters
    rows = redraw(clusters, list(percentiles), resampling)
    low, high = np.percentile(rows, [2.5, 97.5], axis=0)
    return {name: (float(a), float(b)) for name, a, b in zip(names, low, high, strict=True)}


def _redraw_numbers(
    clusters: list[Floats], percentiles: list[float], resampling: Resampling
) -> Floats:
    """[draws, 1 + percentiles] where each request gives one number: many draws at a time."""
    rng = np.random.default_rng(resampling.seed)
    values = np.concatenate(clusters)
    rows, left = [], resampling.draws
    while left:
        some = min(left, max(1, DRAWN_AT_ONCE // values.size))
        drawn = values[rng.integers(0, values.size, (some, values.size))]  # [some, n]
        figures = [drawn.mean(axis=1), *np.percentile(drawn, percentiles, axis=1)]
        rows.append(np.stack(figures, axis=1))
        left -= some
    return np.concatenate(rows)


def _redraw_clusters(
    clusters: list[Floats], percentiles: list[float], resampling: Resampling
) -> Floats:
    """The same where a request gives any number of samples."""
    rng = np.random.default_rng(resampling.seed)
    rows: list[Floats] = []
    while len(rows) < resampling.draws:
        drawn = rng.integers(0, len(clusters), len(clusters))
        pool = np.concatenate([clusters[i] for i in drawn])
        # Only where some requests have gaps and others none can a draw come out empty.
        if pool.size:
            rows.append(np.array([pool.mean(), *np.percentile(pool, percentiles)]))
    return np.stack(rows)

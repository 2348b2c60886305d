"""Links over which keys and values move: their stated rate, and what is assumed of it. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmlab.config import require
from llmlab.data import data_path
from llmlab.perf.catalog import Catalog


@dataclass(frozen=True)
class Interconnect:
    """One direction of a link. bandwidth: stated, bytes/s; latency: seconds a message.

    efficiency: share of the stated rate that a transfer of keys and values reaches (assumed, as
    is the latency; `source` is that of the stated rate).
    """

    name: str
    title: str
    bandwidth: float
    efficiency: float = 0.8
    latency: float = 1e-5
    source: str = ""

    def __post_init__(self) -> None:
        checks = (
            ("bandwidth", self.bandwidth > 0, "> 0 bytes/s"),
            ("efficiency", 0 < self.efficiency <= 1, "a share in (0, 1]"),
            ("latency", self.latency >= 0, ">= 0 seconds"),
        )
        for field, fits, allowed in checks:
            value = getattr(self, field)
            require(fits and math.isfinite(value), "Interconnect", field, value, allowed)

    @property
    def rate(self) -> float:
        """Bytes/s that a transfer reaches."""
        return self.bandwidth * self.efficiency

    def seconds(self, num_bytes: float, messages: int = 1) -> float:
        """How long the link is busy with this many bytes in this many messages."""
        return num_bytes / self.rate + messages * self.latency


def interconnect_catalog(path: str | Path | None = None) -> Catalog:
    """The links of `data/hardware.yaml`, or of `path`."""
    return Catalog.load(path or data_path("hardware.yaml"), "interconnects", "interconnect")


def load_interconnect(name: str, path: str | Path | None = None) -> Interconnect:
    """One link by name; an unknown name is a ValueError that lists the near ones.

    path: a file of one's own; the shipped links are known too where it has none.
    """
    own = path is not None and "interconnects:" in Path(path).read_text(encoding="utf-8")
    catalog = interconnect_catalog(path if own else None)
    key = catalog.resolve(name)
    entry: dict[str, Any] = catalog.entry(key, ("gb_s", "efficiency", "latency_us", "source"))
    for field in ("gb_s", "efficiency", "latency_us"):
        value = entry[field]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{catalog.path}: {key}.{field} = {value!r}: must be a number")
    return Interconnect(
        name=key,
        title=str(entry.get("title", key)),
        bandwidth=entry["gb_s"] * 1e9,
        efficiency=entry["efficiency"],
        latency=entry["latency_us"] * 1e-6,
        source=str(entry["source"]),
    )

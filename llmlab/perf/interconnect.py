"""Links over which keys and values move: their stated rate, and what is assumed of it. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmlab.config import is_real, require
from llmlab.data import data_path
from llmlab.perf.catalog import Catalog, read_yaml


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
        for field in ("bandwidth", "efficiency", "latency"):
            value = getattr(self, field)
            require(is_real(value), "Interconnect", field, value, "a number")
        require(self.bandwidth > 0, "Interconnect", "bandwidth", self.bandwidth, "> 0 bytes/s")
        is_share = 0 < self.efficiency <= 1
        require(is_share, "Interconnect", "efficiency", self.efficiency, "a share in (0, 1]")
        require(self.latency >= 0, "Interconnect", "latency", self.latency, ">= 0 seconds")

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
    content = {} if path is None else read_yaml(Path(path))
    own = isinstance(content, dict) and "interconnects" in content
    catalog = interconnect_catalog(path if own else None)
    key = catalog.resolve(name)
    entry: dict[str, Any] = catalog.entry(key, ("gb_s", "efficiency", "latency_us", "source"))
    for field in ("gb_s", "efficiency", "latency_us"):
        if not is_real(entry[field]):
            value = entry[field]
            raise ValueError(f"{catalog.path}: {key}.{field} = {value!r}: must be a number")
    return Interconnect(
        name=key,
        title=str(entry.get("title", key)),
        bandwidth=entry["gb_s"] * 1e9,
        efficiency=entry["efficiency"],
        latency=entry["latency_us"] * 1e-6,
        source=str(entry["source"]),
    )

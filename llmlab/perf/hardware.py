"""What a device can do at best: peak rates by dtype, bandwidth, memory, with their source.

Vendor figures come from `data/hardware.yaml`; measured ceilings of this machine have the same
form (see perf.calibrate). This module does not know what a step is. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmlab.config import is_real, require
from llmlab.data import data_path
from llmlab.perf.catalog import Catalog

DTYPE_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}

# Which rate a matrix product runs at when its operands are stored as the key. int4 weights are
# unpacked to fp16 first; devices without fp8 units compute in fp16 too.
_RATE_ORDER = {
    "fp32": ("fp32",),
    "fp16": ("fp16", "fp32"),
    "bf16": ("bf16", "fp16", "fp32"),
    "fp8": ("fp8", "fp16", "fp32"),
    "int8": ("int8", "fp16", "fp32"),
    "int4": ("fp16", "fp32"),
}


REQUIRED = ("peak_tflops", "bandwidth_gb_s", "memory_gb")  # of an entry


@dataclass(frozen=True)
class Hardware:
    """One device. `source` says where its figures come from.

    peak_flops: operations/s of a dense matrix product, by dtype. bandwidth: bytes/s of its memory,
    memory: bytes of it. interconnect: bytes/s to its peers in one direction, 0 if it states none.
    """

    name: str
    title: str
    peak_flops: dict[str, float]
    bandwidth: float
    memory: float
    interconnect: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        require(bool(self.peak_flops), "Hardware", "peak_flops", self.peak_flops, "non-empty")
        rates = [("bandwidth", self.bandwidth), ("memory", self.memory)]
        for dtype, rate in self.peak_flops.items():
            require(dtype in DTYPE_BYTES, "Hardware", "peak_flops", dtype, _one_of(DTYPE_BYTES))
            rates.append(("peak_flops", rate))
        for field, value in rates:
            require(is_real(value) and value > 0, "Hardware", field, value, "a number > 0")
        linked = is_real(self.interconnect) and self.interconnect >= 0
        require(linked, "Hardware", "interconnect", self.interconnect, "a number >= 0")

    def flops(self, dtype: str) -> float:
        """Peak operations/s of a matrix product whose weights are stored as `dtype`."""
        require(dtype in _RATE_ORDER, "Hardware", "dtype", dtype, _one_of(_RATE_ORDER))
        for rate in _RATE_ORDER[dtype]:
            if rate in self.peak_flops:
                return self.peak_flops[rate]
        have = ", ".join(self.peak_flops)
        raise ValueError(f"{self.name} states no rate that {dtype} could run at (it has {have})")

    def ridge(self, dtype: str) -> float:
        """FLOPs per byte at which compute and memory take equally long (the roofline's corner)."""
        return self.flops(dtype) / self.bandwidth


def _one_of(names: Any) -> str:
    return f"one of {', '.join(names)}"


def hardware_catalog(path: str | Path | None = None) -> Catalog:
    """The entries of `data/hardware.yaml`, or of `path`."""
    return Catalog.load(path or data_path("hardware.yaml"), "hardware", "hardware")


def load_hardware(name: str, path: str | Path | None = None) -> Hardware:
    """One device by name; an unknown name is a ValueError that lists the near ones."""
    catalog = hardware_catalog(path)
    key = catalog.resolve(name)
    return hardware_from_entry(key, catalog.entry(key), str(catalog.path))


def hardware_from_entry(name: str, entry: Any, where: str) -> Hardware:
    """Build a device from a yaml entry; units are those the file's header states."""
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: {name} = {entry!r}: must be a mapping")
    missing = [field for field in REQUIRED if field not in entry]
    if missing:
        raise ValueError(f"{where}: {name} lacks {', '.join(missing)}")
    rates = entry["peak_tflops"]
    if not isinstance(rates, dict):
        raise ValueError(f"{where}: {name}.peak_tflops = {rates!r}: must map dtypes to TFLOP/s")
    try:
        return Hardware(
            name=name,
            title=str(entry.get("title", name)),
            peak_flops={dtype: _scaled(rate, 1e12) for dtype, rate in rates.items()},
            bandwidth=_scaled(entry["bandwidth_gb_s"], 1e9),
            memory=_scaled(entry["memory_gb"], 1e9),
            interconnect=_scaled(entry.get("interconnect_gb_s", 0.0), 1e9),
            source=str(entry.get("source", where)),
        )
    except ValueError as error:
        raise ValueError(f"{where}: {name}: {error}") from error


def _scaled(value: Any, unit: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{value!r} is not a number")
    return float(value) * unit

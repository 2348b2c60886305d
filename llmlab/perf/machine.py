"""This machine: what it is, and what was measured on it the last time. No torch.

`llmlab calibrate` writes `machine.yaml` into the user's data folder (LLMLAB_DATA_DIR overrides
it); this module reads it back, as a device like those of `data/hardware.yaml`.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import yaml
from platformdirs import user_data_dir

from llmlab.executor import cores
from llmlab.perf.hardware import Hardware, hardware_from_entry

THIS_MACHINE = "this-machine"


def machine_file() -> Path:
    """Where this machine's measured figures are kept."""
    return Path(os.environ.get("LLMLAB_DATA_DIR") or user_data_dir("llmlab")) / "machine.yaml"


@dataclass(frozen=True)
class Measured:
    """Repeated measurements of one rate, in its unit per second."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.samples)

    @property
    def spread(self) -> float:
        """(largest - smallest) / median."""
        return (max(self.samples) - min(self.samples)) / self.median

    def as_dict(self) -> dict[str, Any]:
        return {"median": self.median, "spread": self.spread, "n": len(self.samples)}


def machine_facts() -> dict[str, Any]:
    """Name, cores and memory of this machine, from the operating system."""
    memory = psutil.virtual_memory()
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cpu": cpu_name(),
        "cores": os.cpu_count() or 1,
        "usable_cores": cores(),
        "memory_bytes": memory.total,
        "free_memory_bytes": memory.available,
        "python": platform.python_version(),
    }


def cpu_name() -> str:
    """The processor's name as the system states it."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def load_machine() -> dict[str, Any] | None:
    """What `llmlab calibrate` kept, or None if it never ran here. A damaged file is an error."""
    path = machine_file()
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read ({error}): run `llmlab calibrate`") from error
    if not isinstance(content, dict) or "hardware" not in content:
        raise ValueError(f"{path}: is not what `llmlab calibrate` writes: run it again")
    return content


def machine_hardware() -> Hardware:
    """This machine as a device; ValueError that says what to run if it was never measured."""
    content = load_machine()
    if content is None:
        raise ValueError("this machine was not measured yet: run `llmlab calibrate`")
    return hardware_from_entry(THIS_MACHINE, content["hardware"], str(machine_file()))


def save_machine(content: dict[str, Any]) -> Path:
    """Keep measured figures; written beside its place and moved there, so never half a file."""
    path = machine_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}.tmp")
    beside.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    beside.replace(path)
    return path

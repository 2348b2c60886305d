"""What `llmlab doctor` finds: this machine, what it reaches, and what each lab can do on it."""

from __future__ import annotations

import importlib.metadata
import shutil
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "firefox", "msedge")

# lab, what it shows on this machine itself, what that needs ("model", "triton" or nothing)
LABS = (
    ("00", "start_here", "meets the machine, the panel and the checker", None),
    ("01", "two_phases", "streams a real answer", "model"),
    ("02", "roofline", "measures decode and prefill", "model"),
    ("03", "kv_cache", "watches blocks, writes paged attention", None),
    ("04", "batching", "races static against continuous", "model"),
    ("05", "chunked_prefill", "sees documents stall chats", "model"),
    ("06", "load", "1 to 64 users, here and on simulated GPUs", "model"),
    ("07", "honest_benchmarks", "catches benchmarks that lie", "model"),
    ("08", "disaggregation", "moves a KV cache between processes", "model"),
    ("09", "hosted_api", "benchmarks a server over HTTP", "model"),
    ("10", "triton", "writes kernels", "triton"),
    ("11", "interview", "questions, mock interview, report", None),
)


def examine(repeats: int, progress: Any = None) -> dict[str, Any]:
    """Everything the doctor finds, as plain data. Rates in units per second, sizes in bytes."""
    from llmlab.perf.machine import machine_facts

    found: dict[str, Any] = {"machine": machine_facts()}
    found["software"] = {name: version(name) for name in ("torch", "triton", "jupyterlab")}
    found["gpu"] = find_gpu()
    found["measured"] = measure(repeats, progress)
    found["model"] = find_model()
    found["browser"] = find_browser()
    found["calibrated"] = find_calibration()
    found["labs"] = what_labs_can_do(found, shipped_labs())
    return found


def version(package: str) -> str | None:
    """Installed version of a package; None if it is not there."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def find_gpu() -> dict[str, Any]:
    """The CUDA device torch can use, with NVML's own figures beside it."""
    from llmlab.perf.roofline import nvml_figures

    nvml = nvml_figures()
    try:
        import torch
    except ImportError:
        return {"found": False, "name": None, "nvml": nvml}
    if not torch.cuda.is_available():
        return {"found": False, "name": None, "nvml": nvml}
    free, total = torch.cuda.mem_get_info()
    name = torch.cuda.get_device_name()
    return {"found": True, "name": name, "memory": total, "free_memory": free, "nvml": nvml}


def measure(repeats: int, progress: Any = None) -> list[dict[str, Any]]:
    """Measured ceilings of the CPU and, if there is one, of the GPU."""
    try:
        import torch

        from llmlab.perf.calibrate import measure_ceilings
    except ImportError:
        return []
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    rows = []
    for device in devices:
        ceilings = measure_ceilings(device, repeats, progress)
        hardware = ceilings.hardware()
        rows.append(
            {
                "device": device,
                "name": ceilings.name,
                "threads": torch.get_num_threads() if device == "cpu" else None,
                "read_bytes_per_s": ceilings.bandwidth.as_dict(),
                "matrix_flops_per_s": {k: v.as_dict() for k, v in ceilings.flops.items()},
                "ridge_flops_per_byte": {k: hardware.ridge(k) for k in ceilings.flops},
            }
        )
    return rows


def find_model() -> dict[str, Any]:
    """The small model's file, or what to run to get it."""
    from llmlab.engine.load import DEFAULT_MODEL, find_smollm2

    try:
        path = find_smollm2()
    except ValueError as error:
        return {"found": False, "name": DEFAULT_MODEL, "path": None, "advice": str(error)}
    return {"found": True, "name": DEFAULT_MODEL, "path": str(path), "advice": None}


def find_browser() -> dict[str, Any]:
    """A browser to open JupyterLab in."""
    for name in BROWSERS:
        path = shutil.which(name)
        if path:
            return {"found": True, "name": name, "path": path}
    for place in ("/Applications/Google Chrome.app", "/Applications/Safari.app"):
        if Path(place).exists():
            return {"found": True, "name": Path(place).stem, "path": place}
    return {"found": False, "name": None, "path": None}


def find_calibration() -> dict[str, Any]:
    """Whether `llmlab calibrate` ran here."""
    from llmlab.perf.machine import load_machine, machine_file

    try:
        kept = load_machine()
    except ValueError as error:
        return {"found": False, "path": str(machine_file()), "advice": str(error)}
    advice = None if kept else "run `llmlab calibrate` (under a minute)"
    return {"found": kept is not None, "path": str(machine_file()), "advice": advice}


def what_labs_can_do(found: dict[str, Any], names: set[str]) -> list[dict[str, Any]]:
    """For each lab called in `names`: state "full", "reduced" or "no", and what that means."""
    return [
        {"lab": number, "name": name, "does": does, **_here(needs, found)}
        for number, name, does, needs in LABS
        if f"{number}_{name}" in names
    ]


def shipped_labs() -> set[str]:
    """Names of the labs of this installation."""
    from llmlab.labs.workspace import shipped

    return {path.stem for path in shipped()}


def _here(needs: str | None, found: dict[str, Any]) -> dict[str, str]:
    if not found["software"]["torch"]:
        return {"state": "no", "here": "torch is not installed"}
    if needs == "model" and not found["model"]["found"]:
        return {"state": "reduced", "here": "tiny random model and simulator; real model missing"}
    if needs == "triton":
        if not found["software"]["triton"]:
            return {"state": "reduced", "here": "no Triton here: the torch versions only"}
        if not found["gpu"]["found"]:
            return {"state": "full", "here": "Triton's interpreter on the CPU; no speeds"}
        return {"state": "full", "here": f"on {found['gpu']['name']}"}
    return {"state": "full", "here": "everything"}

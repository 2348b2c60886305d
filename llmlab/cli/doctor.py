"""`llmlab doctor`: what this machine is, what it reaches, and what each lab can do on it."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(add_completion=False)
out = Console(highlight=False)
err = Console(stderr=True)

EXAMPLES = "Examples:  llmlab doctor   ·   llmlab doctor --quick   ·   llmlab doctor --json"

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


@app.command(epilog=EXAMPLES)
def doctor(
    quick: Annotated[bool, typer.Option("--quick", help="Measure 3 times instead of 7.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Say what this machine is, how fast it reads and multiplies, and what each lab can do."""
    try:
        if as_json:
            found = examine(3 if quick else 7)
        else:
            with err.status("looking around") as status:
                found = examine(3 if quick else 7, lambda what: status.update(f"measuring {what}"))
    except KeyboardInterrupt:
        err.print("interrupted")
        raise typer.Exit(130) from None
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        show(found)


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


# ---------------------------------------------------------------- the page


MARKS = {"full": "✓", "reduced": "~", "no": "✗"}
INKS = {"full": "green", "reduced": "yellow", "no": "red"}
SPEED_HEAD = ["measured here", "median", "spread", "n"]
LAB_HEAD = ["lab", "on this machine itself", "here"]
LEGEND = (
    "spread: (largest - smallest) / median. ridge: FLOP per byte from which on the matrix rate, "
    "not the memory, is the limit."
)


def show(found: dict[str, Any]) -> None:
    """Print the findings; fits 80 columns."""
    out.print(_grid(None, _facts(found)))
    out.print()
    if found["measured"]:
        out.print(_grid(SPEED_HEAD, _speeds(found["measured"]), right=SPEED_HEAD[1:]))
        out.print(LEGEND, style="dim")
        out.print()
    inks = {MARKS[state]: f"[{ink}]{MARKS[state]}[/{ink}]" for state, ink in INKS.items()}
    labs = [[*row, f"{inks[here[0]]}{here[1:]}"] for *row, here in _labs(found["labs"])]
    out.print(_grid(LAB_HEAD, labs))
    for line in _advice(found):
        out.print(line, markup=False, soft_wrap=True)


def page(found: dict[str, Any]) -> Any:
    """The findings in a notebook: tables that follow its width, or the same as text."""
    from llmlab.viz.show import Shown, table_html, table_text

    tables = [
        ("This machine", ["part", "found"], _facts(found)),
        ("What each lab can do here", LAB_HEAD, _labs(found["labs"])),
        ("How fast it is", SPEED_HEAD, _speeds(found["measured"])),
    ]
    notes = [LEGEND, *_advice(found)]
    last = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return Shown(
        None,
        lambda: "".join(table_html(*table) for table in tables) + last,
        lambda: "\n\n".join([*(table_text(*table) for table in tables), *notes]),
    )


def _advice(found: dict[str, Any]) -> list[str]:
    parts = (found[part]["advice"] for part in ("model", "calibrated"))
    return [f"→ {advice}" for advice in parts if advice]


def _grid(head: list[str] | None, rows: list[list[str]], right: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, show_header=head is not None)
    for number, name in enumerate(head or ["", ""]):
        bold = "bold" if head is None and number == 0 else None
        side: Any = "right" if name in right else "left"
        fold: Any = "fold" if number else "ellipsis"
        table.add_column(name, style=bold, justify=side, overflow=fold, no_wrap=number == 0)
    for row in rows:
        table.add_row(*row)
    return table


def _facts(found: dict[str, Any]) -> list[list[str]]:
    machine, gpu, model = found["machine"], found["gpu"], found["model"]
    browser, software = found["browser"], found["software"]
    free, total = machine["free_memory_bytes"] / 1e9, machine["memory_bytes"] / 1e9
    return [
        ["machine", f"{machine['cpu']}, {machine['usable_cores']} of {machine['cores']} cores"],
        ["system", f"{machine['system']} {machine['architecture']}"],
        ["memory", f"{free:.1f} GB free of {total:.1f} GB"],
        ["GPU", _gpu_line(gpu)],
        ["torch", software["torch"] or "missing"],
        ["Triton", software["triton"] or "missing (no wheels for this system)"],
        ["model", model["name"] if model["found"] else f"{model['name']} is missing"],
        ["browser", browser["name"] or "none found: open the printed address yourself"],
    ]


def _gpu_line(gpu: dict[str, Any]) -> str:
    if not gpu["found"]:
        return "none that torch can use"
    line = f"{gpu['name']}, {gpu['free_memory'] / 1e9:.1f} GB free"
    if gpu["nvml"]:
        line += f", NVML says {gpu['nvml']['gpu_percent']:.0f} % busy. {gpu['nvml']['meaning']}"
    return line


def _speeds(measured: list[dict[str, Any]]) -> list[list[str]]:
    rows = []
    for found in measured:
        device, read = found["device"].upper(), found["read_bytes_per_s"]
        rate = f"{read['median'] / 1e9:.1f} GB/s"
        rows.append([f"{device} memory read", rate, *_spread(read)])
        for dtype, flops in found["matrix_flops_per_s"].items():
            ridge = found["ridge_flops_per_byte"][dtype]
            what = f"{device} matrix product, {dtype} (ridge {ridge:.1f} FLOP/B)"
            rows.append([what, f"{flops['median'] / 1e9:,.0f} GFLOP/s", *_spread(flops)])
    return rows


def _spread(rate: dict[str, Any]) -> list[str]:
    return [f"{100 * rate['spread']:.0f} %", str(rate["n"])]


def _labs(labs: list[dict[str, Any]]) -> list[list[str]]:
    return [
        [f"{lab['lab']} {lab['name']}", lab["does"], f"{MARKS[lab['state']]} {lab['here']}"]
        for lab in labs
    ]

"""`python -m llmlab.bench gpu`: kernels and engine on a CUDA card, beside the card's own ceilings.

Sections run one after the other, each in a process of its own with a budget of seconds: one that
hangs or crashes loses only its unwritten rows, and the whole always ends. Needs torch, triton,
numpy, safetensors, tokenizers and transformers, nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from llmlab.bench.gpu_report import as_markdown, targets

Row = dict[str, Any]

# section -> seconds it may take. First the ceilings: everything else is a share of them.
SECTIONS = {
    "ceilings": 30,
    "decode_attention": 65,
    "prefill_attention": 50,
    "decode_step": 70,
    "overlap": 25,
    "serving": 60,
    "small_kernels": 30,
    "gemm": 25,
    "prefill": 35,
    "transformers": 45,
    "flashinfer": 45,
}
GRACE = 10  # seconds beyond its budget after which a section is ended from outside
TOTAL = 470  # under 8 minutes, the report included


def run_section(name: str) -> Callable[[Any], Iterator[Row]]:
    """The generator of one section's rows; its imports happen here, in the section's process."""
    from llmlab.bench import (
        gpu_attention,
        gpu_ceilings,
        gpu_model,
        gpu_overlap,
        gpu_serving,
        gpu_small,
    )

    return {
        "ceilings": gpu_ceilings.run,
        "decode_attention": gpu_attention.run_decode,
        "prefill_attention": gpu_attention.run_prefill,
        "decode_step": gpu_model.run_decode,
        "overlap": gpu_overlap.run,
        "serving": gpu_serving.run,
        "small_kernels": gpu_small.run,
        "gemm": gpu_small.run_gemm,
        "prefill": gpu_model.run_prefill,
        "transformers": gpu_serving.run_transformers,
        "flashinfer": gpu_attention.run_flashinfer,
    }[name]


def section_process(args: argparse.Namespace) -> int:
    """In a section's process: write each row as a line of JSON as soon as it is known."""
    import torch

    from llmlab.bench.gpu_timing import Bench

    bench = Bench(
        torch.device(args.device),
        args.tiny,
        time.monotonic() + args.budget,
        json.loads(args.ceilings),
    )
    torch.manual_seed(0)
    with Path(args.rows).open("w", encoding="utf-8") as out:
        for row in run_section(args.section)(bench):
            out.write(json.dumps(row) + "\n")
            out.flush()
    return 0


def run_apart(name: str, args: argparse.Namespace, budget: float, ceilings: Row) -> Row:
    """One section in its own process: its rows, how it ended, how long it took."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows"
        command = [sys.executable, "-m", "llmlab.bench", "gpu", "--section", name]
        command += ["--rows", str(rows), "--budget", str(budget), "--device", args.device]
        command += ["--ceilings", json.dumps(ceilings), *(["--tiny"] if args.tiny else [])]
        environment = dict(os.environ)
        if args.device == "cpu":
            environment["TRITON_INTERPRET"] = "1"
        start = time.monotonic()
        try:
            done = subprocess.run(
                command,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                timeout=budget + GRACE,
            )
            status = "ok" if done.returncode == 0 else _last_line(done.stderr, done.returncode)
        except subprocess.TimeoutExpired:
            status = f"ended after {budget + GRACE:.0f} s"
        found = _read_rows(rows)
    return {"status": status, "seconds": round(time.monotonic() - start, 1), "rows": found}


def _last_line(text: str, code: int) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return f"failed ({code}): {lines[-1][:300] if lines else 'no message'}"


def _read_rows(path: Path) -> list[Row]:
    """Every whole line; the last one may be cut where a process was ended."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found


def run_all(args: argparse.Namespace, log: Callable[[str], None]) -> Row:
    """All sections within the total; what is left out says so."""
    from llmlab.bench.gpu_ceilings import ceilings_of

    slower = 4 if args.tiny else 1  # the interpreter on a busy machine is not what is timed
    end = time.monotonic() + slower * args.total
    result: Row = {"benchmark": "gpu", "tiny": args.tiny, **machine(args.device), "sections": {}}
    ceilings: Row = {}
    for name, seconds in SECTIONS.items():
        budget = slower * seconds
        if args.only and name not in args.only and name != "ceilings":
            continue
        left = end - time.monotonic() - GRACE
        if left < 5:
            result["sections"][name] = {"status": "no time left", "seconds": 0.0, "rows": []}
            continue
        log(f"{name}: at most {min(budget, left):.0f} s")
        section = run_apart(name, args, min(budget, left), ceilings)
        result["sections"][name] = section
        log(f"{name}: {section['status']}, {len(section['rows'])} rows, {section['seconds']} s")
        if name == "ceilings":
            ceilings = ceilings_of(section["rows"])
    result["ceilings"] = ceilings
    result["targets"] = targets(result)
    return result


def machine(device: str) -> Row:
    """Card, driver and versions, as far as the machine says."""
    import platform

    import numpy
    import torch
    import triton

    found: Row = {
        "device": device,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": triton.__version__,
        "numpy": numpy.__version__,
        "card": None,
        "driver": None,
    }
    if device.startswith("cuda"):
        properties = torch.cuda.get_device_properties(torch.device(device))
        found["card"] = properties.name
        found["memory_bytes"] = properties.total_memory
        found["sms"] = properties.multi_processor_count
        found["driver"] = _driver()
    for name in ("transformers", "flashinfer"):
        found[name] = _version(name)
    return found


def _driver() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    return text.strip().splitlines()[0] if text.strip() else None


def _version(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    for package in (name, f"{name}-python"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None


def parse(argv: list[str]) -> argparse.Namespace:
    """Options; the ones without help are for a section's own process."""
    hidden = argparse.SUPPRESS
    parser = argparse.ArgumentParser(
        prog="python -m llmlab.bench gpu", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    parser.add_argument("--out", type=Path, help="write FILE (JSON) and FILE.md beside it")
    parser.add_argument("--device", default="cuda", help="default: cuda")
    sections = ", ".join(SECTIONS)
    parser.add_argument(
        "--only", nargs="+", choices=SECTIONS, metavar="SECTION", help=f"only these: {sections}"
    )
    parser.add_argument("--total", type=float, default=TOTAL, help=f"seconds, default {TOTAL}")
    parser.add_argument(
        "--tiny", action="store_true", help="toy sizes: proves the command, measures nothing"
    )
    parser.add_argument("--section", choices=SECTIONS, help=hidden)
    parser.add_argument("--rows", help=hidden)
    parser.add_argument("--budget", type=float, default=60, help=hidden)
    parser.add_argument("--ceilings", default="{}", help=hidden)
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Run the benchmark; 2 if there is no card."""
    args = parse(argv)
    import torch

    if args.device.startswith("cuda") and not torch.cuda.is_available():
        print(
            "no CUDA device here: run this on a machine with one, or prove the command's logic "
            "with --tiny --device cpu",
            file=sys.stderr,
        )
        return 2
    if args.device == "cpu" and not args.tiny:
        print("--device cpu needs --tiny: the kernels run in an interpreter there", file=sys.stderr)
        return 2
    if args.section:
        return section_process(args)
    if args.out and not args.out.parent.is_dir():  # said now, not when minutes were spent
        print(f"--out {args.out}: there is no folder {args.out.parent}", file=sys.stderr)
        return 2
    result = run_all(args, lambda text: print(text, file=sys.stderr, flush=True))
    text = json.dumps(result, indent=1)
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")
        args.out.with_name(args.out.name + ".md").write_text(as_markdown(result), encoding="utf-8")
    print(text if args.json else as_markdown(result))
    return 0

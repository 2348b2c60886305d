"""Test the tests: break the scheduler on purpose, one way at a time, and see the tests fail.

    python tests/mutants/run.py             all of them; exit 1 if one survives
    python tests/mutants/run.py refund      those with this word in their name

Each mutant lives in its own temporary copy; the working tree is never touched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.mutants.sched import MUTANTS, Mutant  # noqa: E402

PARTS = ["pyproject.toml", "llmlab/__init__.py", "llmlab/config.py", "llmlab/trace.py"]
TIMEOUT = 120
# The tests that notice most come first: a killed mutant costs no more than its first failure.
ORDER = ("cases", "commit", "policies", "workloads", "leap", "door", "machine", "blocks")


def make_copy(folder: Path) -> None:
    """What the scheduler's tests need, and nothing that imports more."""
    for part in PARTS:
        (folder / part).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / part, folder / part)
    for tree in ("llmlab/sched", "tests/sched"):
        shutil.copytree(
            ROOT / tree, folder / tree, ignore=shutil.ignore_patterns("__pycache__", ".*")
        )


def run_tests(folder: Path) -> tuple[str, str]:
    """("passed" | "failed" | "timed out" | "broken", first failure)."""
    options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow and not full"]
    files = [f"tests/sched/test_{name}.py" for name in ORDER]
    command = [sys.executable, "-m", "pytest", *files, *options]
    env = {
        **os.environ,
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(folder),
    }
    # Plugins of other tests cost more than these tests do.
    env |= {"LLMLAB_WORKLOADS": "200", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    env.pop("PYTHONPATH", None)
    try:
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return "timed out", f"no end within {TIMEOUT} s"
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    first = lines[0].split(" ", 1)[1].split(" - ")[0].split("::", 1)[-1] if lines else ""
    # 1 is "tests failed"; anything else but 0 means that they did not run.
    return {0: "passed", 1: "failed"}.get(done.returncode, "broken"), first or done.stdout[-300:]


def judge(mutant: Mutant) -> tuple[bool, str]:
    """Was it noticed, and by which test?"""
    with tempfile.TemporaryDirectory(prefix="llmlab-mutant-") as name:
        folder = Path(name)
        make_copy(folder)
        path = folder / "llmlab" / "sched" / mutant.file
        source = path.read_text(encoding="utf-8")
        if source.count(mutant.old) != 1:
            return False, f"STALE: its text occurs {source.count(mutant.old)} times, not once"
        path.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")
        result, first = run_tests(folder)
    return result in ("failed", "timed out"), f"{result}: {first}"


def main(argv: list[str]) -> int:
    chosen = [m for m in MUTANTS if not argv or argv[0] in m.name]
    start = monotonic()
    with tempfile.TemporaryDirectory(prefix="llmlab-mutant-") as name:
        make_copy(Path(name))
        result, first = run_tests(Path(name))
    if result != "passed":
        print(f"the tests must pass on the scheduler as it is, but {result}: {first}")
        return 1
    survivors = 0
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        for mutant, (killed, by) in zip(chosen, pool.map(judge, chosen), strict=True):
            survivors += not killed
            print(f"{'killed  ' if killed else 'SURVIVED'}  {mutant.name:<48} {by}", flush=True)
    print(
        f"{len(chosen) - survivors} of {len(chosen)} mutants killed in {monotonic() - start:.0f} s"
    )
    return 1 if survivors or not chosen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What nbval's kernels kept (`keep_states`): labs score nothing, solutions score all.

python -m tests.labs.scores FOLDER
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

EXPECTED = {"labs": "not answered yet", "solutions": "correct"}


def faults(folder: Path) -> list[str]:
    """A sentence for each folder of notebooks whose checks ended otherwise, or not at all."""
    found = []
    for name, expected in EXPECTED.items():
        kept = folder / f"{name}.txt"
        states = Counter(kept.read_text(encoding="utf-8").splitlines() if kept.exists() else [])
        print(f"{name}: {states.total()} checks, {dict(states)}")
        if set(states) != {expected}:
            found.append(f"{name}/: every check must end {expected!r}, not {dict(states)}")
    return found


if __name__ == "__main__":
    sys.exit("\n".join(faults(Path(sys.argv[1]))) or None)

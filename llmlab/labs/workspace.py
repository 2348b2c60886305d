"""The student's folder `work/`: what they changed there is never overwritten.

`reset` brings one lab back as it was shipped and keeps what was there as a numbered backup.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from llmlab.check.replace import replace_text
from llmlab.data import labs_path

State = Literal["new", "updated", "as shipped", "yours", "yours, of an older lab"]
BEGUN = ".begun.json"  # in the student's folder


@dataclass(frozen=True)
class Copy:
    """One lab in the student's folder and how it compares with the shipped one."""

    name: str
    path: Path
    state: State


def shipped() -> list[Path]:
    """The labs of this installation, in order."""
    return sorted(labs_path().glob("[0-9]*.ipynb"))


def find(name: str) -> Path:
    """The shipped lab called `name`, `01` or `01_two_phases`; ValueError lists what there is."""
    found = [path for path in shipped() if path.stem == name or path.stem.split("_")[0] == name]
    if not found:
        known = ", ".join(path.stem for path in shipped())
        raise ValueError(f"no lab {name!r}; there are: {known}")
    return found[0]


def copy_labs(work: Path) -> list[Copy]:
    """Copy what is missing into `work`; returns every lab with its state.

    A lab that the student has not touched follows the shipped one; one that they changed stays.
    """
    work.mkdir(parents=True, exist_ok=True)
    begun = _begun_from(work)
    copies = [_copy_one(lab, work / lab.name, begun) for lab in shipped()]
    _remember(work, begun)
    return copies


def _copy_one(lab: Path, target: Path, begun: dict[str, str]) -> Copy:
    """Copy one lab if nothing of the student's is in its way; notes in `begun` what it is of."""
    ours, before = _digest(lab), begun.get(lab.stem)
    theirs = _digest(target) if target.exists() else None
    state: State
    if theirs == ours:
        state = "as shipped"
    elif theirs is None or theirs == before:
        _put(lab, target)
        state = "new" if theirs is None else "updated"
    else:
        return Copy(
            lab.stem, target, "yours" if before in (None, ours) else "yours, of an older lab"
        )
    begun[lab.stem] = ours
    return Copy(lab.stem, target, state)


def _put(lab: Path, target: Path) -> None:
    """Through a temporary name: a half-written notebook must never look like a student's."""
    part = target.with_suffix(".part")
    try:
        shutil.copyfile(lab, part)
        part.replace(target)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def reset(work: Path, name: str) -> tuple[Path, Path | None]:
    """Restore one lab; returns its path and the backup of what was there, if anything was."""
    lab = find(name)
    target = work / lab.name
    work.mkdir(parents=True, exist_ok=True)
    backup = _next_backup(target) if target.exists() else None
    if backup:
        target.rename(backup)
    _put(lab, target)
    _remember(work, _begun_from(work) | {lab.stem: _digest(lab)})
    return target, backup


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _begun_from(work: Path) -> dict[str, str]:
    """Which version of each lab the student's file was begun from; {} where nothing is known."""
    try:
        kept = json.loads((work / BEGUN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {k: v for k, v in kept.items() if isinstance(v, str)} if isinstance(kept, dict) else {}


def _remember(work: Path, begun: dict[str, str]) -> None:
    if begun != _begun_from(work):
        # Where it cannot be written, a newer lab is not noticed; the student's work is as safe.
        with contextlib.suppress(OSError):
            replace_text(work / BEGUN, json.dumps(begun, indent=1, sort_keys=True))


def _next_backup(target: Path) -> Path:
    numbered = (target.with_suffix(f".backup-{n}.ipynb") for n in itertools.count(1))
    return next(path for path in numbered if not path.exists())

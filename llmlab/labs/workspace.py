"""The student's folder `work/`: labs are copied in once and never overwritten.

`reset` brings one lab back as it was shipped and keeps what was there as a numbered backup.
"""

from __future__ import annotations

import itertools
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from llmlab.data import labs_path

State = Literal["new", "as shipped", "yours", "missing"]


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
    """Copy what is missing into `work`; returns every lab with its state before the copy."""
    work.mkdir(parents=True, exist_ok=True)
    copies = []
    for lab in shipped():
        target = work / lab.name
        if not target.exists():
            # Through a temporary name: a half-written notebook must never look like a student's.
            part = target.with_suffix(".part")
            try:
                shutil.copyfile(lab, part)
                part.replace(target)
            except OSError:
                part.unlink(missing_ok=True)
                raise
            copies.append(Copy(lab.stem, target, "new"))
        else:
            same = target.read_bytes() == lab.read_bytes()
            copies.append(Copy(lab.stem, target, "as shipped" if same else "yours"))
    return copies


def reset(work: Path, name: str) -> tuple[Path, Path | None]:
    """Restore one lab; returns its path and the backup of what was there, if anything was."""
    lab = find(name)
    target = work / lab.name
    work.mkdir(parents=True, exist_ok=True)
    backup = _next_backup(target) if target.exists() else None
    if backup:
        target.rename(backup)
    shutil.copyfile(lab, target)
    return target, backup


def _next_backup(target: Path) -> Path:
    numbered = (target.with_suffix(f".backup-{n}.ipynb") for n in itertools.count(1))
    return next(path for path in numbered if not path.exists())

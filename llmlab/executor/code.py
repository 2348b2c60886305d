"""Which code made a result: a digest of the sources that decide it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


@lru_cache(maxsize=8)
def code_version(parts: tuple[str, ...], files: tuple[Path, ...] = ()) -> str:
    """`0.1.0+sha256:...` over the .py files of some packages of llmlab, and some data files.

    parts: names below the package, e.g. ("sched", "trace"). files: read as they are; their names
    count, their folders do not. Two runs with equal digests were made by equal code.
    """
    from llmlab import __version__

    digest = hashlib.sha256()
    for path in [*_sources(parts), *files]:
        inside = path.is_relative_to(PACKAGE)
        name = path.relative_to(PACKAGE).as_posix() if inside else path.name
        content = path.read_bytes().replace(b"\r\n", b"\n")  # as a checkout on Windows has it
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return f"{__version__}+sha256:{digest.hexdigest()[:16]}"


def whole_version() -> str:
    """The same over all of llmlab and its data files: what two machines must share."""
    from llmlab.data import data_path

    parts = {path.stem if path.suffix else path.name for path in PACKAGE.iterdir()}
    inside = tuple(sorted(part for part in parts if not part.startswith("_")))
    known = tuple(part for part in inside if _has_sources(part))
    return code_version(known, tuple(sorted(data_path().rglob("*.yaml"))))


def _has_sources(part: str) -> bool:
    return (PACKAGE / f"{part}.py").is_file() or any((PACKAGE / part).rglob("*.py"))


def _sources(parts: Iterable[str]) -> list[Path]:
    found: list[Path] = []
    for part in parts:
        single = PACKAGE / f"{part}.py"
        inside = [single] if single.is_file() else sorted((PACKAGE / part).rglob("*.py"))
        if not inside:
            raise ValueError(f"part {part!r}: there is no llmlab.{part}")
        found += inside
    return found

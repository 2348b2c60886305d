"""Machine code of the compiled parts, kept from one process to the next.

numba compiles a part in seconds, and finding what it has compiled before costs it most of a second
and 120 MB in every process. So what LLVM made of a part is kept as a plain object file beside
Python's own bytecode, and loaded without either; they are imported where a part is new.

    __pycache__/<source>.<part>-<key>.o      SHA-256 and symbol in a line, then the object file

The key covers the sources, the versions and the processor. A damaged file is made anew; where
nothing can be written, each process compiles.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib import metadata
from importlib.util import cache_from_source
from pathlib import Path
from threading import Lock
from typing import Any

from platformdirs import user_cache_dir

from llmlab.kernels import cpu_object
from llmlab.kernels.cpu_team import address_of
from llmlab.kernels.cpu_width import processor

_lock = Lock()
_loaded: list[Any] = []  # the code of what is not held is freed


def code(source: str, part: str, *constants: int) -> int:
    """Address of a compiled part of `kernels/<source>.py`, ready to be called.

    constants: of a part that is made for them, as `attend_for(dim, group, half)`. ImportError where
    it is new to this machine and numba is missing.
    """
    with _lock:
        return _code(source, part, constants)


@cache
def _code(source: str, part: str, constants: tuple[int, ...]) -> int:
    name = ".".join([source, part, *map(str, constants)])
    for folder in _folders():
        found = _read(folder / f"{name}-{_key()}.o")
        if found is not None:
            return _load(*found)
    from llmlab.kernels.cpu_compile import compiled

    symbol, made = compiled(source, part, constants)
    _keep(f"{name}-{_key()}.o", symbol, made)
    return _load(symbol, made)


@cache
def _key() -> str:
    digest = sha256()
    for file in sorted(Path(__file__).parent.glob("cpu_*.py")):
        digest.update(file.read_bytes())
    name, features = processor()
    versions = [metadata.version(package) for package in ("numba", "llvmlite")]
    digest.update(repr((name, sorted(features), versions)).encode())
    return digest.hexdigest()[:16]


def _folders() -> Iterator[Path]:
    """Where code may lie: as close to its sources, and as much to be trusted, as bytecode is."""
    yield Path(cache_from_source(__file__)).parent
    yield Path(user_cache_dir("llmlab")) / "code"


def _read(path: Path) -> tuple[str, bytes] | None:
    """Symbol and object file; None if there is none or it is not what was written."""
    try:
        head, _, made = path.read_bytes().partition(b"\n")
        stated, symbol = head.decode("ascii").split(" ")
    except (OSError, ValueError):
        return None
    return (symbol, made) if stated == _checksum(symbol, made) else None


def _keep(file: str, symbol: str, made: bytes) -> None:
    for folder in _folders():
        beside = folder / f"{file}.{uuid.uuid4().hex}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            beside.write_bytes(f"{_checksum(symbol, made)} {symbol}\n".encode() + made)
            os.replace(beside, folder / file)
            return
        except OSError:
            with suppress(OSError):
                beside.unlink(missing_ok=True)


def _checksum(symbol: str, made: bytes) -> str:
    return sha256(symbol.encode() + b"\n" + made).hexdigest()


def _load(symbol: str, made: bytes) -> int:
    try:
        held, address = cpu_object.load(made, symbol, address_of)
    except (cpu_object.Unknown, OSError):  # another kind of machine, or a system that forbids it
        from llmlab.kernels.cpu_compile import load

        held, address = load(made, symbol)
    _loaded.append(held)
    return address

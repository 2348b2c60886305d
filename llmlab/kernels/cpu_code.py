"""Machine code of the compiled parts, kept from one process to the next.

numba compiles a part in seconds, and finding what it has compiled before costs it most of a second
and 60 MB in every process. So what LLVM made of a part is kept as a plain object file beside
Python's own bytecode, and loaded by LLVM alone; numba is imported where a part is new.

    __pycache__/<source>.<part>-<key>.o      SHA-256 and symbol in a line, then the object file

The key covers the sources, the versions and the processor. A damaged file is made anew; where
nothing can be written, each process compiles.
"""

from __future__ import annotations

import ctypes
import os
import uuid
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib import import_module, metadata
from importlib.util import cache_from_source
from pathlib import Path
from threading import Lock
from typing import Any

from llvmlite import binding
from platformdirs import user_cache_dir

from llmlab.kernels.cpu_team import symbols

# What numba's wrappers would call to report an error; parts raise none.
NEVER_CALLED = ("numba_gil_ensure", "numba_gil_release", "NRT_MemInfo_call_dtor")

_lock = Lock()
_loaded: list[Any] = []  # LLVM frees the code of what is not held


def code(source: str, part: str, *constants: int) -> int:
    """Address of a compiled part of `kernels/<source>.py`, ready to be called.

    constants: of a part that is made for them, as `attend_for(dim, group)`. ImportError where it
    is new to this machine and numba is missing.
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
    symbol, made = _compile(source, part, constants)
    _keep(f"{name}-{_key()}.o", symbol, made)
    return _load(symbol, made)


@cache
def _key() -> str:
    digest = sha256()
    for file in sorted(Path(__file__).parent.glob("cpu_*.py")):
        digest.update(file.read_bytes())
    machine = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    versions = [metadata.version(package) for package in ("numba", "llvmlite")]
    digest.update(repr((machine, versions)).encode())
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


def _compile(source: str, part: str, constants: tuple[int, ...]) -> tuple[str, bytes]:
    _link()  # before numba compiles: it looks for the names as well
    compiled = getattr(import_module(f"llmlab.kernels.{source}"), part)
    if constants:
        compiled = compiled(*constants)
    module = binding.parse_assembly(compiled.inspect_llvm())
    return compiled.native_name, _machine().emit_object(module)


def _load(symbol: str, made: bytes) -> int:
    _link()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), _machine())
    engine.add_object_file(binding.ObjectFileRef.from_data(made))
    engine.finalize_object()
    _loaded.append(engine)
    return int(engine.get_function_address(symbol))


@cache
def _link() -> None:
    """Tell LLVM where the functions are that parts call by name."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    for name, address in symbols().items():
        binding.add_symbol(name, address)
    end = ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value
    for name in NEVER_CALLED:
        if binding.address_of_symbol(name) is None:
            binding.add_symbol(name, end)


def _machine() -> Any:
    return binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(),
        features=binding.get_host_cpu_features().flatten(),
        opt=3,
        jit=True,
        codemodel="jitdefault",
    )

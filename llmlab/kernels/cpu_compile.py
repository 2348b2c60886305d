"""Compiles parts with numba and LLVM; loads them with LLVM where `cpu_object` cannot.

Imported only where one of both is needed: each brings 60 MB and half a second into a process.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from llvmlite import binding

from llmlab.kernels.cpu_team import NAMES, address_of


def compiled(source: str, part: str, constants: tuple[int, ...]) -> tuple[str, bytes]:
    """Symbol and object file of a part of `kernels/<source>.py`. ImportError without numba."""
    _link()  # before numba compiles: it looks for the names as well
    found = getattr(import_module(f"llmlab.kernels.{source}"), part)
    if constants:
        found = found(*constants)
    module = binding.parse_assembly(found.inspect_llvm())
    return found.native_name, _machine().emit_object(module)


def load(made: bytes, symbol: str) -> tuple[Any, int]:
    """What LLVM frees the code with, if it is not held, and the address of `symbol`."""
    _link()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), _machine())
    engine.add_object_file(binding.ObjectFileRef.from_data(made))
    engine.finalize_object()
    return engine, int(engine.get_function_address(symbol))


@cache
def _link() -> None:
    """Tell LLVM where the functions are that parts call by name."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    for name in NAMES:
        if binding.address_of_symbol(name) is None:
            binding.add_symbol(name, address_of(name))


def _machine() -> Any:
    return binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(),
        features=binding.get_host_cpu_features().flatten(),
        opt=3,
        jit=True,
        codemodel="jitdefault",
    )

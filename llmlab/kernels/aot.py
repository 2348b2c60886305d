"""What the compiler makes of a kernel, for a chip that need not be there.

`compile_launch` takes the `Launch` that the engine would run, compiles it for sm_<arch> and reads
registers, spills, shared memory, the matrix instruction and the width of its loads from the
result. This must run in a process without TRITON_INTERPRET; `python -m llmlab.kernels.aot`
prints one JSON row a kernel variant and chip, `table()` starts that process for you.

    python -m llmlab.kernels.aot --arch 90 --kernel decode
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ARCHS = (80, 90, 100)

# Shared memory one program may use, bytes: CUDA C++ programming guide, table "Technical
# specifications per compute capability" (163 KB on 8.0, 227 KB on 9.0 and 10.0).
SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}

MATRIX_INSTRUCTIONS = {
    "tcgen05": r"tcgen05\.mma",
    "wgmma": r"wgmma\.mma_async",
    "mma": r"mma\.sync",
}

# 16 bytes a thread: into registers (4 x 32 or 2 x 64 bits), or straight into shared memory.
VECTOR_LOAD = re.compile(
    r"ld\.global[\w.:]*\.(?:v4\.[bfu]32|v2\.[bfu]64)|cp\.async\.c[ag]\.shared\.global[^;]*\b(?:0x10|16)\b"
)


@dataclass(frozen=True)
class Row:
    """One kernel variant on one chip. registers: a thread; spills: bytes of stack a thread.

    matrix_instruction: "mma", "wgmma", "tcgen05" or "none"; vector_loads: 16-byte loads in the
    code (not executed ones).
    """

    kernel: str
    target: str
    variant: str
    registers: int
    spills: int
    shared_bytes: int
    matrix_instruction: str
    vector_loads: int


def signature(launch: Any) -> tuple[dict[str, str], dict[Any, Any], dict[Any, Any]]:
    """(types, constants, alignments) of a launch's arguments, as Triton's JIT would see them.

    The JIT treats 1 as a constant and notes multiples of 16, unless told not to specialise.
    """
    types: dict[str, str] = {}
    constants: dict[Any, Any] = {}
    aligned: dict[Any, Any] = {}
    for index, param in enumerate(launch.kernel.params):
        name = param.name
        if name in launch.constants:
            types[name], constants[(index,)] = "constexpr", launch.constants[name]
            continue
        value = launch.args[name]
        types[name] = _type(value)
        if param.do_not_specialize or isinstance(value, float):
            continue
        number = value.data_ptr() if hasattr(value, "data_ptr") else value
        if number == 1 and not hasattr(value, "data_ptr"):
            types[name], constants[(index,)] = "constexpr", 1
        elif number % 16 == 0:
            aligned[(index,)] = [["tt.divisibility", 16]]
    return types, constants, aligned


def _type(value: Any) -> str:
    names = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "int32": "i32"}
    names |= {"int64": "i64"}
    if hasattr(value, "data_ptr"):
        return "*" + names[str(value.dtype).removeprefix("torch.")]
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def compile_launch(launch: Any, arch: int, name: str = "", variant: str = "") -> Row:
    """Compile for sm_<arch> and read the result. Raises RuntimeError in the interpreter."""
    if not hasattr(launch.kernel, "params"):
        raise RuntimeError("TRITON_INTERPRET is set: compile in a process without it, see table()")
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types, constants, aligned = signature(launch)
    source = ASTSource(launch.kernel, types, constants, aligned)
    options = {
        "num_warps": launch.num_warps,
        "num_stages": launch.num_stages,
        "enable_fp_fusion": True,
    }
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    ptx = compiled.asm["ptx"]
    used = resources(compiled.asm["cubin"])
    matrix = [k for k, pattern in MATRIX_INSTRUCTIONS.items() if re.search(pattern, ptx)]
    return Row(
        kernel=name,
        target=f"sm_{arch}",
        variant=variant,
        registers=used["REG"],
        spills=used["STACK"] + used.get("LOCAL", 0),
        shared_bytes=int(compiled.metadata.shared),
        matrix_instruction=matrix[0] if matrix else "none",
        vector_loads=len(VECTOR_LOAD.findall(ptx)),
    )


def resources(cubin: bytes) -> dict[str, int]:
    """REG, STACK, SHARED, LOCAL of the one kernel in a cubin, by Triton's bundled cuobjdump."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {key: int(value) for key, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text)}


def rows(archs: tuple[int, ...] = ARCHS, kernel: str | None = None) -> list[Row]:
    """Compile every variant of `variants.py` for the chips; about a second each."""
    from llmlab.kernels.variants import variants

    return [
        compile_launch(launch, arch, name, variant)
        for arch in archs
        for name, variant, launch in variants(arch)
        if kernel in (None, name)
    ]


def table(archs: tuple[int, ...] = ARCHS, kernel: str | None = None) -> list[dict[str, Any]]:
    """`rows` from a process of its own, whatever TRITON_INTERPRET is here."""
    command = [sys.executable, "-m", "llmlab.kernels.aot", "--arch", *map(str, archs)]
    command += ["--kernel", kernel] if kernel else []
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise RuntimeError(f"compiling the kernels failed: {last[0]}")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def main(argv: list[str] | None = None) -> int:
    """Print the rows as JSON."""
    parser = argparse.ArgumentParser(prog="python -m llmlab.kernels.aot", description=__doc__)
    parser.add_argument("--arch", type=int, nargs="+", choices=ARCHS, default=list(ARCHS))
    parser.add_argument("--kernel", help="only this kernel")
    args = parser.parse_args(argv)
    print(json.dumps([asdict(row) for row in rows(tuple(args.arch), args.kernel)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

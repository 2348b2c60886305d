"""What the compiler makes of a learner's kernel for a GPU that is not here.

The kernel's text is taken from the notebook cell, with the helpers and constants it uses, and
compiled in a process of its own: this one may be set to interpret. Nothing runs.

    compile_decode(decode_kernel, tiles=(64,))
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmlab.kernels.aot import Row
from llmlab.labs.own_kernels import unanswered
from llmlab.labs.own_triton import available
from llmlab.viz.show import Shown, shown_table

HEADER = "import triton\nimport triton.language as tl\n\n"


def function_of(kernel: Any) -> Any:
    """The Python function under `@triton.jit`."""
    return getattr(kernel, "fn", kernel)


def source_of(kernel: Any) -> str:
    """The kernel as a module of its own: jitted helpers and plain constants it names come first.

    OSError where Python has no source for it (a notebook's cells have one).
    """
    parts: dict[str, str] = {}
    _collect(function_of(kernel), parts)
    return HEADER + "\n\n".join(parts.values()) + "\n"


def _collect(fn: Any, parts: dict[str, str]) -> None:
    text = textwrap.dedent(inspect.getsource(fn))
    if not text.lstrip().startswith("@"):
        text = "@triton.jit\n" + text
    for name in fn.__code__.co_names:
        value = fn.__globals__.get(name)
        value_of = getattr(value, "value", value)  # tl.constexpr(64) holds 64
        if isinstance(value_of, int | float | str):
            parts.setdefault(name, f"{name} = tl.constexpr({value_of!r})")
        elif inspect.isfunction(getattr(value, "fn", None)) and name not in parts:
            _collect(value.fn, parts)
    parts[fn.__name__] = text


TILES = (16, 64, 128)


def compile_decode(
    kernel: Any, tiles: Sequence[int] = TILES, archs: Sequence[int] = (80, 90)
) -> list[Row]:
    """A decode kernel in bfloat16, a row a tile size and chip; kernel None: the library's own.

    32 query heads, 8 KV heads, head dim 128. NotImplementedError for a stub, RuntimeError with
    what the compiler says last. Empty where there is no Triton.
    """
    if not available:
        return []
    job: dict[str, Any] = {"archs": list(archs), "tiles": list(tiles)}
    with tempfile.TemporaryDirectory() as folder:
        if kernel is not None:
            if unanswered(kernel):
                raise NotImplementedError
            path = Path(folder) / "kernel.py"
            path.write_text(source_of(kernel), encoding="utf-8")
            job |= {"path": str(path), "name": function_of(kernel).__name__}
        done = subprocess.run(
            [sys.executable, "-m", "llmlab.labs.aot_worker", json.dumps(job)],
            capture_output=True,
            text=True,
            env={k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"},
        )
    if done.returncode:
        lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
        raise RuntimeError((lines or ["no message"])[-1].strip())
    return [Row(**row) for row in json.loads(done.stdout)]


COMPILED_HEAD = [
    "kernel",
    "tile",
    "chip",
    "registers",
    "spills",
    "shared",
    "16-byte loads",
    "matrix",
]


def show_compiled(rows: Sequence[Row]) -> Shown:
    """The rows as a table."""
    cells = [
        [
            row.kernel,
            row.variant,
            row.target,
            str(row.registers),
            f"{row.spills} B",
            f"{row.shared_bytes / 1024:.0f} KiB",
            str(row.vector_loads),
            row.matrix_instruction,
        ]
        for row in rows
    ]
    caption = "Compiled, not run" if rows else "Nothing was compiled"
    return shown_table(caption, COMPILED_HEAD, cells)

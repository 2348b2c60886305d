"""Compiles a decode kernel for chips that are not here; started by `own_aot.compile_decode`.

A process of its own, because Triton either compiles or interprets, and a notebook on a machine
without a GPU is set to interpret. It takes one job as JSON and prints a JSON row a kernel.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

import torch

from llmlab.kernels.aot import Row, compile_launch
from llmlab.kernels.launch import Launch
from llmlab.kernels.paged_decode import decode_launches

HEADS, KV_HEADS, DIM, PAGE = 32, 8, 128, 16  # Llama-3.1-8B's attention


def _empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def rows(job: dict[str, Any]) -> Iterator[Row]:
    """job: archs, tiles, and path and name of the learner's kernel; without: the library's."""
    q, cache = _empty(8, HEADS, DIM), _empty(4096, PAGE, KV_HEADS, DIM)
    context, table = _empty(8, dtype=torch.int32), _empty(8, 64, dtype=torch.int32)
    if "path" not in job:
        for arch in job["archs"]:
            launch = decode_launches(q, cache, cache, q, context, table, splits=1, arch=arch)[0]
            yield compile_launch(launch, arch, "library's", f"{launch.constants['BLOCK_N']} keys")
        return
    kernel = getattr(_module(job["path"]), job["name"])
    args: dict[str, Any] = {
        "q": q,
        "k_cache": cache,
        "v_cache": cache,
        "out": q,
        "block_table": table,
    }
    args |= {"context_len": context, "M": 64, "scale": DIM**-0.5}
    constants = {"HEADS": HEADS, "KV_HEADS": KV_HEADS, "D": DIM, "PAGE": PAGE}
    for keys in job["tiles"]:
        launch = Launch(kernel, (1,), args, {**constants, "BLOCK_N": keys})
        for arch in job["archs"]:
            yield compile_launch(launch, arch, "yours", f"{keys} keys")


def _module(path: str) -> Any:
    spec = spec_from_file_location("own_kernel", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path}: cannot be imported")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    print(json.dumps([asdict(row) for row in rows(json.loads(sys.argv[1]))]))

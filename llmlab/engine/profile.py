"""Record a run with the kernels in it: torch's profiler around an engine's steps.

On CUDA the file holds every kernel under the name of its part (`llmlab.qkv`, `llmlab.attention`,
...); graphs are off for such a run, because a replayed graph has no parts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from llmlab.config import EngineConfig
from llmlab.engine.engine import Engine
from llmlab.engine.load import load_model
from llmlab.engine.model import Model


def choose_device(device: str) -> str:
    """ "auto" is CUDA where there is a card; a card that is asked for must be there."""
    has_card = torch.cuda.is_available()
    if device == "auto":
        return "cuda" if has_card else "cpu"
    if device not in ("cpu", "cuda") or (device == "cuda" and not has_card):
        allowed = "auto, cpu or cuda" if has_card else "auto or cpu (no CUDA device here)"
        raise ValueError(f"device = {device!r}: must be {allowed}")
    return device


def load_for(device: str, name: str, progress: Any = None) -> Model:
    """A model on "cpu" or, in bfloat16, on "cuda"."""
    if device == "cpu":
        return load_model(name, progress=progress)
    return load_model(name, dtype=torch.bfloat16, device=device, progress=progress)


def make_engine(
    name: str, config: EngineConfig, scheduler: Any, device: str, progress: Any = None
) -> Engine:
    """An engine on `device` whose parts have names in a profile."""
    model = load_for(device, name, progress)
    if device == "cpu":
        return Engine(model, config, scheduler)
    from llmlab.engine.cuda_runner import CudaRunner

    runner = partial(CudaRunner, graphs=False, ranges=True)
    return Engine(model, config, scheduler, runner=runner)


def with_kernels(run: Callable[[], Any], path: Path) -> Any:
    """Call `run` under torch's profiler, write its Chrome trace to `path`, return the result."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=kinds) as profile:
        result = run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    profile.export_chrome_trace(str(path))
    return result

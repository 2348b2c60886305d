"""The engine: a model, a scheduler and a paged cache, run step by step.

Names are imported on first use, so that torch-free parts of the package stay torch-free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmlab.engine.engine import Engine
    from llmlab.engine.live import TokenOutput
    from llmlab.engine.load import load_model
    from llmlab.engine.model import Model
    from llmlab.engine.sampler import TokenLogprob

__all__ = ["Engine", "Model", "TokenLogprob", "TokenOutput", "load_model"]

_HOME = {
    "Engine": "engine",
    "Model": "model",
    "TokenLogprob": "sampler",
    "TokenOutput": "live",
    "load_model": "load",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)

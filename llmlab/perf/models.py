"""Model shapes by name, from `data/models.yaml` or a file of the learner's own. No torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmlab.config import ModelConfig
from llmlab.data import data_path
from llmlab.perf.catalog import Catalog


def models_catalog(path: str | Path | None = None) -> Catalog:
    """The entries of `data/models.yaml`, or of `path`."""
    return Catalog.load(path or data_path("models.yaml"), "models", "model")


def load_model_config(name: str, path: str | Path | None = None) -> ModelConfig:
    """The shape of one model; an unknown name is a ValueError that lists the near ones."""
    catalog = models_catalog(path)
    key = catalog.resolve(name)
    shape: dict[str, Any] = catalog.entry(key, ("shape",))["shape"]
    if not isinstance(shape, dict):
        raise ValueError(f"{catalog.path}: models.{key}.shape = {shape!r}: must be a mapping")
    try:
        return ModelConfig(name=key, **shape)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{catalog.path}: models.{key}.shape: {error}") from error

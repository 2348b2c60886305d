"""The runner for the CPU where numba is installed: the compiled forward pass.

With an attention of one's own, in float64, or without numba, `Runner` runs the plain one.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch

from llmlab.config import EngineConfig
from llmlab.engine.attention import Attention
from llmlab.engine.batch import Batch
from llmlab.engine.model import Model
from llmlab.engine.runner import Runner


class CpuRunner(Runner):
    """A `Runner` whose steps go through `CpuForward`; its attention is built in."""

    def __init__(
        self, model: Model, config: EngineConfig, attention: str | Attention = "torch"
    ) -> None:
        from llmlab.engine.cpu_model import CpuForward

        super().__init__(model, config, attention)
        self.compiled = CpuForward(model, self.kv, config.max_model_len)

    def _run(self, batch: Batch) -> torch.Tensor:
        return self.compiled(batch)


def can_compile(model: Model) -> bool:
    """True if this model's steps can run compiled: float32 on the CPU, and numba is there."""
    is_plain = torch.device(model.device).type == "cpu" and model.dtype == torch.float32
    return is_plain and find_spec("numba") is not None

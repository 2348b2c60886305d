"""Model and KV pool together: a batch in, logits out.

Everything that depends on the device lives here; another runner with the same `forward` (CUDA
graphs, say) can take its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from llmlab.config import EngineConfig
from llmlab.engine.attention import Attention, paged_attention
from llmlab.engine.batch import Batch, build_batch
from llmlab.engine.kv_cache import KVCache
from llmlab.engine.model import Model
from llmlab.engine.sampler import Row, sample
from llmlab.sched.plan import StepPlan


class Runner:
    """Runs steps of one model over one pool. `attention`: "torch", "triton" or a callable."""

    def __init__(
        self, model: Model, config: EngineConfig, attention: str | Attention = "torch"
    ) -> None:
        self.model = model
        self.config = config
        self.attention = resolve_attention(attention)
        self.kv = KVCache(
            model.config,
            config.num_blocks,
            config.block_size,
            dtype=model.dtype,
            device=model.device,
        )

    def build(self, plan: StepPlan) -> Batch:
        return build_batch(plan, self.config.block_size, device=self.model.device)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits [S, V] of the rows to sample, in float32 or better."""
        with torch.inference_mode():
            logits = self.model.forward(batch, self.kv, self.attention)
        return logits if logits.dtype == torch.float64 else logits.float()

    def timer(self) -> Callable[[], float] | None:
        """Seconds of the last forward pass on the device's own clock, or None if it has none.

        Called once its tokens were read back, it waits for nothing.
        """
        return None

    def sample(self, logits: torch.Tensor, rows: Sequence[Row]) -> list[int]:
        """One token id for each row of logits [S, V]."""
        return sample(logits, rows)


def resolve_attention(attention: str | Attention) -> Attention:
    """The callable behind a name; a callable is taken as it is."""
    if callable(attention):
        return attention
    if attention == "torch":
        return paged_attention
    if attention == "triton":
        from llmlab.kernels.paged_attention import triton_attention

        return triton_attention
    raise ValueError(
        f"Engine.attention = {attention!r}: must be 'torch', 'triton' or a function "
        "f(q, k_cache, v_cache, batch), see llmlab.engine.attention.paged_attention"
    )


MakeRunner = Callable[[Model, EngineConfig, "str | Attention"], Runner]


def for_device(
    model: Model, attention: str | Attention | None, runner: MakeRunner | None
) -> tuple[str | Attention, MakeRunner]:
    """What was asked for, or the default of the model's device: Triton kernels on CUDA."""
    on_cuda = torch.device(model.device).type == "cuda"
    if runner is None:
        runner = Runner
        if on_cuda:
            from llmlab.engine.cuda_runner import CudaRunner

            runner = CudaRunner
    return attention or ("triton" if on_cuda else "torch"), runner

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
from llmlab.engine.cuda_sampler import Sampled, upload
from llmlab.engine.kv_cache import KVCache
from llmlab.engine.model import Model
from llmlab.engine.passes import token_passes
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
            dtype=model.kv_dtype,
            device=model.device,
        )
        self.passes = token_passes(2**62)  # a scheduler of one's own may know no token budget

    def build(self, plan: StepPlan) -> Batch:
        return build_batch(plan, self.config.block_size, device=self.model.device)

    def feed(self, batch: Batch, pairs: Sequence[tuple[int, int]], tokens: torch.Tensor) -> None:
        """Put tokens[source] into row `row` of the batch's input for each (row, source).

        tokens: what `launch_sample` holds for the step before. They never leave the device.
        """
        if pairs:
            rows, sources = upload(list(zip(*pairs, strict=True)), torch.int64, tokens.device)
            # A row that is not finite stops the engine when it is read back; -1 must not be looked
            # up in the embedding before that.
            fed = tokens[sources].clamp_min(0).to(batch.input_ids.dtype)
            batch.input_ids.index_copy_(0, rows, fed)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits [S, V] of the rows to sample, in float32 or better.

        A batch that does not fit in memory runs in halves, with a warning that names what fits.
        """
        with torch.inference_mode():
            return self.passes.run(batch, self._run)

    def _run(self, batch: Batch) -> torch.Tensor:
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

    def launch_sample(self, logits: torch.Tensor, rows: Sequence[Row]) -> Sampled:
        """The same tokens, perhaps still on their way from the device."""
        return Sampled(torch.tensor(self.sample(logits, rows), device=logits.device))


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
    """What was asked for, or the default of the model's device.

    On CUDA Triton kernels; on the CPU compiled parts, if no attention was named.
    """
    on_cuda = torch.device(model.device).type == "cuda"
    if runner is None:
        runner = Runner
        if on_cuda:
            from llmlab.engine.cuda_runner import CudaRunner

            runner = CudaRunner
        elif attention is None:
            from llmlab.engine.cpu_runner import CpuRunner, can_compile

            runner = CpuRunner if can_compile(model) else Runner
    return attention or ("triton" if on_cuda else "torch"), runner

"""The runner for CUDA: fused kernels, decode steps as captured graphs, memory that gives way.

A decode step of Qwen3-0.6B is about 260 kernels of a few microseconds: launched one by one, the
host is slower than the card. A graph replays them all with one call, so steps are padded to a few
captured sizes: decode steps by their requests, mixed ones of up to 1024 tokens by their tokens.

On the CPU (kernels in Triton's interpreter) the same code runs without graphs; that is how it is
tested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from llmlab.config import EngineConfig
from llmlab.engine.attention import Attention
from llmlab.engine.batch import Batch, build_batch
from llmlab.engine.cuda_memory import (
    GPU_MEMORY_UTILIZATION,
    activation_bytes,
    blocks_that_fit,
    bytes_per_block,
)
from llmlab.engine.cuda_model import fused_forward
from llmlab.engine.cuda_sampler import Sampled, sample_on_device
from llmlab.engine.model import Model
from llmlab.engine.passes import Passes, token_passes
from llmlab.engine.runner import Runner, resolve_attention
from llmlab.engine.sampler import Row
from llmlab.engine.step_buffers import (
    StepBuffers,
    graph_sizes,
    is_decode,
    padded_size,
)
from llmlab.kernels.launch import cdiv
from llmlab.kernels.paged_attention import triton_attention
from llmlab.kernels.rope import rope_table

Key = tuple[str, int]  # ("decode", requests) or ("mixed", tokens)

# Mixed steps in between are captured too. Below, decode steps are; above, the card is slower than
# the host, and a graph would only hold memory.
SMALLEST_MIXED, LARGEST_MIXED = 16, 1024


class CudaRunner(Runner):
    """`Engine(model, config, attention="triton", runner=CudaRunner)`.

    graphs: capture steps at construction (only with "triton": a learner's attention may do what a
    graph cannot). ranges: name the parts for the profiler. A step's logits are overwritten by the
    next step of the same size.
    """

    def __init__(
        self,
        model: Model,
        config: EngineConfig,
        attention: str | Attention = "triton",
        *,
        graphs: bool = True,
        ranges: bool = False,
    ) -> None:
        is_ours = attention == "triton"
        resolved = triton_attention if is_ours else resolve_attention(attention)
        try:
            super().__init__(model, config, resolved)
        except torch.OutOfMemoryError:
            raise ValueError(_too_many_blocks(model, config)) from None
        device = torch.device(model.device)
        self.table = rope_table(
            config.max_model_len, model.config.head_dim, model.config.rope_theta, device
        )
        width = cdiv(config.max_model_len, config.block_size)
        tokens = max(config.max_num_batched_tokens, config.max_num_seqs)
        self.buffers = StepBuffers(tokens, config.max_num_seqs, width, device)
        self.ranges = ranges
        self.passes = token_passes(tokens)
        self.sample_passes = _sample_passes(config.max_num_seqs)
        self.decode_sizes: list[int] = []  # requests
        self.mixed_sizes: list[int] = []  # tokens
        self._graphs: dict[Key, tuple[Any, torch.Tensor]] = {}
        self._filled: tuple[Batch, Key] | None = None
        self._events: tuple[Any, Any] | None = None
        if graphs and is_ours and device.type == "cuda":
            self._capture_all()

    # ------------------------------------------------------------ a step

    def build(self, plan: Any) -> Batch:
        """The plan in the static buffers, padded to a captured size if there is one."""
        self._filled = None
        if not self.buffers.fits(plan):
            return build_batch(plan, self.config.block_size, device=self.model.device)
        block_size = self.config.block_size
        if is_decode(plan):
            size = padded_size(len(plan.scheduled), self.decode_sizes)
            key, batch = "decode", self.buffers.fill(plan, block_size, pad_to=size or 0)
        else:
            size = padded_size(plan.num_tokens, self.mixed_sizes)
            key, batch = "mixed", self.buffers.fill(plan, block_size, pad_tokens=size or 0)
        if size is not None:
            self._filled = batch, (key, size)
        return batch

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits [S, V] float32 of the rows to sample; launched, not waited for."""
        with torch.inference_mode(), self._timed():
            if self.has_graph(batch) and self._filled is not None:
                return self._replay(self._filled[1])[: len(batch.sample_rows)]
            return self.passes.run(batch, self._run)

    def has_graph(self, batch: Batch) -> bool:
        """True if this batch, the last one built, will be a replayed graph."""
        return self._filled is not None and self._filled[0] is batch

    def sample(self, logits: torch.Tensor, rows: Sequence[Row]) -> list[int]:
        """One token a row, chosen on the device; reading them back is the step's only wait."""
        return self.launch_sample(logits, rows).read()

    def launch_sample(self, logits: torch.Tensor, rows: Sequence[Row]) -> Sampled:
        """One token a row, chosen on the device; nothing is waited for."""
        with torch.inference_mode():
            return Sampled(self.sample_passes.run((logits, rows), _sample))

    def timer(self) -> Callable[[], float] | None:
        """Seconds of the last forward pass by the card's own events; None on the CPU."""
        return None if self._events is None else partial(_elapsed, *self._events)

    # ------------------------------------------------------------ inside

    def _replay(self, key: Key) -> torch.Tensor:
        graph, logits = self._graphs[key]
        graph.replay()
        return logits

    def _static_batch(self, key: Key) -> Batch:
        """The views of the static buffers that the graph of this key reads."""
        kind, size = key
        return (
            self.buffers.decode_batch(size) if kind == "decode" else self.buffers.mixed_batch(size)
        )

    def _run(self, batch: Batch) -> torch.Tensor:
        logits = fused_forward(
            self.model, batch, self.kv, self.attention, self.table, ranges=self.ranges
        )
        return logits if logits.dtype == torch.float64 else logits.float()

    def _capture_all(self) -> None:
        """One graph a size, largest first, all in one memory pool."""
        mixed = [size for size in graph_sizes(self.mixed_limit()) if size >= SMALLEST_MIXED]
        keys = [("mixed", size) for size in mixed]
        keys += [("decode", size) for size in graph_sizes(self.config.max_num_seqs)]
        pool = None
        with torch.inference_mode():
            for key in sorted(keys, key=lambda key: -key[1]):
                clear = self.buffers.clear if key[0] == "decode" else self.buffers.clear_mixed
                clear(key[1])
                batch = self._static_batch(key)
                try:
                    self._warm_up(batch)
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph, pool=pool):
                        logits = self._run(batch)
                except torch.OutOfMemoryError:
                    torch.cuda.empty_cache()
                    continue  # this size runs without a graph
                pool = pool or graph.pool()
                self._graphs[key] = (graph, logits)
        self.decode_sizes = sorted(size for kind, size in self._graphs if kind == "decode")
        self.mixed_sizes = sorted(size for kind, size in self._graphs if kind == "mixed")

    def mixed_limit(self) -> int:
        """Tokens of the largest mixed step that is worth a graph."""
        return min(self.config.max_num_batched_tokens, LARGEST_MIXED)

    def _warm_up(self, batch: Batch) -> None:
        """Compile kernels and let libraries allocate, on a side stream, before capturing."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._run(batch)
        torch.cuda.current_stream().wait_stream(stream)

    def _timed(self) -> AbstractContextManager[None]:
        return _Timed(self) if torch.device(self.model.device).type == "cuda" else nullcontext()


Draws = tuple[torch.Tensor, Sequence[Row]]  # logits [S, V] and how to draw from each row


def _sample(draws: Draws) -> torch.Tensor:
    return sample_on_device(*draws)


def _sample_passes(most: int) -> Passes[Draws]:
    """For the sampler: rows are independent, so pieces of a batch draw the same tokens."""

    def cut(draws: Draws, size: int) -> list[Draws]:
        logits, rows = draws
        return [(logits[at : at + size], rows[at : at + size]) for at in range(0, len(rows), size)]

    return Passes(most, "requests", "max_num_seqs", lambda draws: len(draws[1]), cut)


def _elapsed(begin: Any, end: Any) -> float:
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


class _Timed(AbstractContextManager[None]):
    """Records an event before and after, on the card's own clock."""

    def __init__(self, runner: CudaRunner) -> None:
        self.runner = runner

    def __enter__(self) -> None:
        event: Any = torch.cuda.Event
        self.begin, self.end = event(enable_timing=True), event(enable_timing=True)
        self.begin.record()

    def __exit__(self, *_: object) -> None:
        self.end.record()
        self.runner._events = (self.begin, self.end)


def _too_many_blocks(model: Model, config: EngineConfig) -> str:
    free, total = torch.cuda.mem_get_info(torch.device(model.device))
    element = model.dtype.itemsize
    fits = blocks_that_fit(
        free,
        total,
        bytes_per_block(model.config, config.block_size, element),
        activation_bytes(model.config, config, element),
    )
    return (
        f"EngineConfig.num_blocks = {config.num_blocks}: must be at most {fits} on this card "
        f"({free / 2**30:.1f} GiB free of {total / 2**30:.1f}, {1 - GPU_MEMORY_UTILIZATION:.0%} "
        "in reserve)"
    )

"""What an engine is made of where it was not told: the pool's size, the scheduler, overlap."""

from __future__ import annotations

from collections.abc import Callable

import torch

from llmlab.config import Default, EngineConfig, require, require_int
from llmlab.engine.cuda_memory import (
    GPU_MEMORY_UTILIZATION,
    MOST_BLOCKS,
    bytes_per_block,
    fit_pool,
)
from llmlab.engine.model import Model
from llmlab.sched.plan import Scheduler

MakeScheduler = Callable[..., Scheduler]


def choose_config(
    model: Model,
    config: EngineConfig | None,
    scheduler: Scheduler | MakeScheduler | None,
    gpu_memory_utilization: float | None,
) -> EngineConfig:
    """The engine's configuration; on CUDA with as many blocks as fit, unless it names a number.

    A scheduler that exists already brings its own configuration, its pool included.
    """
    made = scheduler.config if isinstance(scheduler, Scheduler) else None
    config = config or made or EngineConfig()
    require(made in (None, config), "Engine", "config", config, "the scheduler's own")
    limit = model.config.max_position_embeddings
    require_int("EngineConfig", "max_model_len", config.max_model_len, 1, limit)
    share, device = gpu_memory_utilization, torch.device(model.device)
    if device.type != "cuda":
        without = "left out without a CUDA device (num_blocks sets the pool)"
        require(share is None, "Engine", "gpu_memory_utilization", share, without)
        _require_room(model, config)
        return config
    if made is not None or not isinstance(config.num_blocks, Default):
        return config
    return fit_pool(
        model.config,
        config,
        device,
        element_size=model.dtype.itemsize,
        gpu_memory_utilization=GPU_MEMORY_UTILIZATION if share is None else share,
    )


def _require_room(model: Model, config: EngineConfig) -> None:
    """Refuse a pool that this machine's memory cannot hold, before anything is allocated."""
    try:
        import psutil
    except ModuleNotFoundError:  # a machine for benchmarks may have torch and little else
        return
    each = bytes_per_block(model.config, config.block_size, model.kv_dtype.itemsize)
    memory = psutil.virtual_memory().total
    most = min(memory // each, MOST_BLOCKS)
    allowed = f"at most {most} here (blocks of {each} bytes, memory of {memory / 1e9:.0f} GB)"
    require(config.num_blocks <= most, "EngineConfig", "num_blocks", config.num_blocks, allowed)


def choose_async(wanted: bool | None, model: Model, scheduler: Scheduler) -> bool:
    """Asynchronous scheduling: as wanted, else on CUDA if the scheduler can."""
    if wanted is None:
        return scheduler.takes_placeholders and torch.device(model.device).type == "cuda"
    can = f"False with a {type(scheduler).__name__} that takes no placeholders"
    require(scheduler.takes_placeholders or not wanted, "Engine", "async_scheduling", wanted, can)
    return wanted


def make_scheduler(
    scheduler: Scheduler | MakeScheduler | None, config: EngineConfig, vocab_size: int
) -> Scheduler:
    """The scheduler itself, or one of the class given; `Chunked` if none is."""
    if isinstance(scheduler, Scheduler):
        return scheduler
    if scheduler is None:
        from llmlab.sched.chunked import Chunked

        scheduler = Chunked
    return scheduler(config, vocab_size=vocab_size)

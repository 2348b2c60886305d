"""A learner's Triton kernels: how they are started, and their place in the engine.

    kv_write_kernel[(T,)](k, v, k_cache, v_cache, slots, ROW, BLOCK)
    decode_kernel[(R, Hq)](q, k_cache, v_cache, out, block_table, context_len, M, scale,
                           HEADS, KV_HEADS, D, PAGE, BLOCK_N)

    Engine(model, attention=attention_of(decode_kernel), runner=runner_with(kv_write_kernel))

The checks are in `kernel_checks.py`.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from llmlab.config import EngineConfig
from llmlab.engine.attention import Attention
from llmlab.engine.batch import Batch
from llmlab.engine.kv_cache import KVCache
from llmlab.engine.model import Model
from llmlab.engine.runner import Runner
from llmlab.labs.decode_cases import make_case
from llmlab.labs.kernel_loads import Seen
from llmlab.labs.own_attention import attention_from
from llmlab.labs.own_triton import NO_TRITON, available, on_gpu, watching
from llmlab.viz.show import Shown, shown_table

BLOCK_N = 32  # keys a tile, where nobody says otherwise


def unanswered(kernel: Any) -> bool:
    """Whether the kernel is still a stub: its body raises NotImplementedError."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(getattr(kernel, "fn", kernel))))
    except (OSError, TypeError, SyntaxError):
        return False
    raised = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    return any("NotImplementedError" in ast.unparse(exc) for exc in raised if exc is not None)


def _ready(kernel: Any) -> None:
    if not available:
        raise RuntimeError(NO_TRITON)
    if unanswered(kernel):
        raise NotImplementedError


def lanes(row: int) -> int:
    """The least power of two that is not below `row`: Triton has no other tiles."""
    return 1 << (row - 1).bit_length()


def write_kv(
    kernel: Any,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """One program a slot: k, v [T, Hkv, D] into contiguous caches [N, B, Hkv, D]."""
    _ready(kernel)
    row = k.shape[1] * k.shape[2]
    kernel[(slots.shape[0],)](
        k.contiguous(),
        v.contiguous(),
        k_cache,
        v_cache,
        slots,
        ROW=row,
        BLOCK=lanes(row),
    )


def decode(
    kernel: Any,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_len: torch.Tensor,
    *,
    block_n: int = BLOCK_N,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """One program a request and query head; q [R, Hq, D] contiguous, D a power of two."""
    _ready(kernel)
    requests, heads, dim = q.shape
    out = torch.empty_like(q) if out is None else out
    table = block_table.contiguous()
    kernel[(requests, heads)](
        q.contiguous(),
        k_cache,
        v_cache,
        out,
        table,
        context_len,
        table.shape[1],
        dim**-0.5,
        HEADS=heads,
        KV_HEADS=k_cache.shape[2],
        D=dim,
        PAGE=k_cache.shape[1],
        BLOCK_N=block_n,
    )
    return out


def attention_of(kernel: Any, block_n: int = BLOCK_N) -> Attention:
    """For `Engine(model, attention=...)`: decodes go through the learner's kernel."""
    _ready(kernel)
    return attention_from(partial(decode, kernel, block_n=block_n))


def decode_attention(kernel: Any, block_n: int = 64) -> Attention:
    """The kernel alone, for timing: a batch in which every request has one query."""
    _ready(kernel)

    def attention(
        q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, batch: Batch
    ) -> torch.Tensor:
        table, lengths = batch.block_table, batch.context_len
        return decode(kernel, q, k_cache, v_cache, table, lengths, block_n=block_n)

    return attention


class OwnCache(KVCache):
    """A KV pool that a learner's kernel writes."""

    kernel: Any = None

    def write(
        self,
        layer: int,
        k: torch.Tensor,
        v: torch.Tensor,
        slots: torch.Tensor,
        *,
        padded: bool = True,
    ) -> None:
        """Store k, v [T, Hkv, D] at `slots` [T]; the kernel sees to a slot of -1 itself."""
        write_kv(self.kernel, k, v, self.k[layer], self.v[layer], slots)


def runner_with(kernel: Any) -> Callable[[Model, EngineConfig, str | Attention], Runner]:
    """For `Engine(model, runner=...)`: each layer's keys and values go through the kernel."""
    _ready(kernel)

    def make(model: Model, config: EngineConfig, attention: str | Attention) -> Runner:
        runner = Runner(model, config, attention)
        pool = {"dtype": model.dtype, "device": model.device}
        runner.kv = OwnCache(model.config, config.num_blocks, config.block_size, **pool)  # type: ignore[arg-type]
        runner.kv.kernel = kernel
        return runner

    return make


def library_attention() -> str:
    """The library's own, by the name that the engine knows: its Triton kernels where they run."""
    if not available:
        return "torch"
    from llmlab.kernels.launch import interpreted

    return "triton" if on_gpu() or interpreted() else "torch"


# ---------------------------------------------------------------- which bytes a kernel asks for


def count_loads(
    kernel: Any, contexts: list[int], heads: int, kv_heads: int, dim: int, *, page: int = 16
) -> Seen | None:
    """What one call loads in float32, counted by the interpreter; kernel None: the library's.

    None where there is no Triton.
    """
    if kernel is not None:
        _ready(kernel)
    elif not available:
        return None
    case = make_case(contexts, page, heads, kv_heads, BLOCK_N, dim=dim)
    q, k, v, table, lengths = case.tensors()
    with watching() as seen:
        if kernel is not None:
            decode(kernel, q, k, v, table, lengths)
        else:
            from llmlab.kernels.paged_decode import decode_launches

            out = torch.empty_like(q)
            for launch in decode_launches(q, k, v, out, lengths, table, splits=1, arch=80):
                launch.run()
    return seen


LOADS_HEAD = ["kernel", "programs", "K and V loaded", "distinct", "asked for"]


def show_loads(loads: Mapping[str, Seen | None]) -> Shown:
    """A row a kernel: programs, bytes of K and V loaded and distinct, and their ratio."""
    rows = []
    for name, seen in loads.items():
        if seen is not None and seen.programs:
            loaded, once = seen.loaded("k_cache", "v_cache"), seen.distinct("k_cache", "v_cache")
            ratio = f"{loaded / once:.2f} times"
            rows.append([name, str(seen.programs), f"{loaded:,} B", f"{once:,} B", ratio])
    return shown_table("Counted in the interpreter" if rows else NO_TRITON, LOADS_HEAD, rows)

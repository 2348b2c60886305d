"""The kernels of lab 10 as a learner might write them; tests change a line and see what is said."""

from __future__ import annotations

import linecache
from typing import Any

from llmlab.labs.own_triton import tl, triton

WRITE = """
@triton.jit
def kv_write_kernel(k, v, k_cache, v_cache, slots, ROW: tl.constexpr, BLOCK: tl.constexpr):
    t = tl.program_id(0)
    slot = tl.load(slots + t)
    i = tl.arange(0, BLOCK)
    mine = (i < ROW) & (slot >= 0)
    key = tl.load(k + t * ROW + i, mask=mine)
    value = tl.load(v + t * ROW + i, mask=mine)
    tl.store(k_cache + slot * ROW + i, key, mask=mine)
    tl.store(v_cache + slot * ROW + i, value, mask=mine)
"""

DECODE = """
@triton.jit
def decode_kernel(
    q, k_cache, v_cache, out, block_table, context_len, M, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    r = tl.program_id(0)
    head = tl.program_id(1)
    d = tl.arange(0, D)
    query = tl.load(q + (r * HEADS + head) * D + d).to(tl.float32)
    context = tl.load(context_len + r)
    kv_head = head // (HEADS // KV_HEADS)
    m = float("-inf")
    total = 0.0
    acc = tl.zeros([D], dtype=tl.float32)
    for start in range(0, context, BLOCK_N):
        p = start + tl.arange(0, BLOCK_N)
        live = p < context
        block = tl.load(block_table + r * M + p // PAGE, mask=live, other=0).to(tl.int64)
        row = (block * PAGE + p % PAGE) * KV_HEADS + kv_head
        at = row[:, None] * D + d[None, :]
        k = tl.load(k_cache + at, mask=live[:, None], other=0.0).to(tl.float32)
        v = tl.load(v_cache + at, mask=live[:, None], other=0.0).to(tl.float32)
        score = tl.sum(query[None, :] * k, 1) * scale
        score = tl.where(live, score, float("-inf"))
        m_new = tl.maximum(m, tl.max(score, 0))
        shrink = tl.exp(m - m_new)
        w = tl.exp(score - m_new)
        total = total * shrink + tl.sum(w, 0)
        acc = acc * shrink + tl.sum(w[:, None] * v, 0)
        m = m_new
    tl.store(out + (r * HEADS + head) * D + d, (acc / total).to(out.dtype.element_ty))
"""


def made(source: str, *changes: tuple[str, str], **more: Any) -> Any:
    """The kernel of a source with some texts replaced, as a notebook's cell would make it."""
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    name = f"<kernel {abs(hash(source))}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    scope: dict[str, Any] = {"tl": tl, "triton": triton, **more}
    exec(compile(source, name, "exec"), scope)
    return scope["decode_kernel" if "def decode_kernel" in source else "kv_write_kernel"]

"""Softmax over keys that arrive tile by tile (Milakov and Gimelshein 2018; FlashAttention 2022).

A row of queries keeps three running values over the keys seen so far:

    m    the largest score                       starts at -inf
    l    sum of exp2(score - m)                  starts at 0
    acc  sum of exp2(score - m) * value, [D]     starts at 0

A new tile may raise m; then l and acc were measured against too small a maximum and are scaled by
exp2(m_old - m_new). The answer is acc / l at the end. Scores carry a factor log2(e), so exp2, which
the hardware has, stands for exp.

A row can meet a tile in which it may see nothing: all scores -inf, and -inf - -inf is NaN. Such a
row measures against 0 instead.
"""

from __future__ import annotations

import triton
import triton.language as tl

from llmlab.kernels.launch import dot

LOG2_E = 1.4426950408889634


@triton.jit
def fold_tile(acc, m, l, q, k, v, qk_scale, visible, MASKED: tl.constexpr):
    """Fold one tile of keys and values into (acc, m, l).

    q [M, D], k [D, N], v [N, D], visible [M, N] (read only if MASKED). Rows of v that nobody may
    see must hold zeros: a weight of 0 times NaN would still be NaN.
    """
    scores = dot(q, k, tl.zeros([q.shape[0], k.shape[1]], dtype=tl.float32)) * qk_scale  # [M, N]
    if MASKED:
        scores = tl.where(visible, scores, float("-inf"))
    m_new = tl.maximum(m, tl.max(scores, 1))
    reference = m_new
    if MASKED:
        reference = tl.where(m_new == float("-inf"), 0.0, m_new)
    p = tl.exp2(scores - reference[:, None])
    shrink = tl.exp2(m - reference)
    l_new = l * shrink + tl.sum(p, 1)
    acc = dot(p.to(v.dtype), v, acc * shrink[:, None])
    return acc, m_new, l_new

"""Online softmax, one tile at a time, in torch: the learner's fold and its check.

m, total, acc = fold(m, total, acc, score, v)         score [N], v [N, D], acc [D]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from llmlab.check.result import Result
from llmlab.labs.code_check import Try, check_code
from llmlab.labs.decode_cases import near, unshrunk

FOLD = "A2.online-softmax"

Fold = Callable[..., Any]


def fold_tile(
    m: torch.Tensor, total: torch.Tensor, acc: torch.Tensor, score: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The library's own: m, total (), acc [D], score [N], v [N, D] to the new three."""
    m_new = torch.maximum(m, score.max())
    shrink, p = (m - m_new).exp(), (score - m_new).exp()
    return m_new, total * shrink + p.sum(), acc * shrink + p @ v


def fold_all(fold: Fold, scores: torch.Tensor, v: torch.Tensor, tile: int) -> torch.Tensor:
    """Fold tile after tile, from m = -inf; returns acc / total, [D].

    NotImplementedError for a fold that gives nothing.
    """
    m, total, acc = torch.tensor(-torch.inf), torch.tensor(0.0), torch.zeros(v.shape[1])
    for begin in range(0, scores.shape[0], tile):
        state = fold(m, total, acc, scores[begin : begin + tile], v[begin : begin + tile])
        if state is None or state is ...:
            raise NotImplementedError
        m, total, acc = state
    return acc / total


def check_fold(mine: Fold, seed: int = 0) -> Result:
    """Whatever the tiles, folding them must give softmax over all keys; also for large scores."""
    done = "Any tiles, small scores and large: all as softmax over all keys."
    return check_code(FOLD, _tries(mine, torch.Generator().manual_seed(seed)), done)


def _tries(mine: Fold, gen: torch.Generator) -> Iterator[Try]:
    for count, tile, loud in ((5, 5, 1), (12, 4, 3), (9, 1, 3), (30, 8, 5), (24, 8, 200)):
        scores = loud * torch.randn(count, generator=gen)
        if count == 12:
            scores = scores.sort().values  # each tile brings a larger score
        v = torch.randn(count, 3, generator=gen)
        yield Try(
            f"{count} keys, tiles of {tile}, scores up to {scores.max():.0f}",
            partial(fold_all, mine, scores.clone(), v.clone(), tile),
            partial(_fold_fault, scores, v, tile),
        )


def _fold_fault(scores: torch.Tensor, v: torch.Tensor, tile: int, answer: object) -> str | None:
    expected = scores.double().softmax(0) @ v.double()
    if not isinstance(answer, torch.Tensor) or answer.shape != expected.shape:
        return "gives no acc of shape [D]: return m, total and acc, in this order"
    if not bool(answer.isfinite().all()):
        return "overflows: exp of a large score is inf; take the largest score off first"
    if near(answer, expected):
        return None
    for flags, said in (
        ((True, True), "never shrinks what it has summed when a larger score arrives"),
        ((True, False), "shrinks total but not acc when a larger score arrives"),
        ((False, True), "shrinks acc but not total when a larger score arrives"),
    ):
        # As one head: scores [1, N], v [N, 1, D].
        one = unshrunk(scores[None].double(), v[:, None].double(), tile, *flags)[0]
        if near(answer, one):
            return said
    return f"is off by {float((answer - expected).abs().max()):.2g}"

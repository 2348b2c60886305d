"""From a row of logits to a token, each row by its own parameters alone.

Order as in vLLM: repetition penalty, temperature, min-p, top-k, top-p, draw. Greedy is an argmax,
never a small temperature. A draw's random number is a function of (seed, output index), so it
depends on no neighbour, no batch position and no preemption. Logits are never changed in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from llmlab.sched.request import SamplingParams


@dataclass(slots=True)
class Row:
    """What one row's draw depends on.

    index: how many tokens the request has put out before; history: prompt and output so far (read
    only with a repetition penalty); banned: ids that must not come (end tokens before min_tokens).
    """

    params: SamplingParams
    seed: int = 0
    index: int = 0
    history: Sequence[int] = ()
    banned: Sequence[int] = ()


@dataclass(slots=True)
class TokenLogprob:
    """Log-probability of the chosen token under the model itself, before any sampling parameter.

    rank 1 is the most likely token; top holds (token id, log-probability), best first.
    """

    token_id: int
    logprob: float
    rank: int
    top: list[tuple[int, float]]


def sample(logits: torch.Tensor, rows: Sequence[Row]) -> list[int]:
    """One token id for each row of logits [S, V]."""
    # The first of equal maxima is the lowest id: torch documents it, and a test holds it.
    best = logits.max(dim=-1)
    if not bool(torch.isfinite(best.values).all()):
        raise ValueError("logits are not finite: a NaN or infinity came out of the forward pass")
    tokens: list[int] = best.indices.tolist()
    for i, row in enumerate(rows):
        if row.params.temperature > 0 or row.banned or row.params.repetition_penalty != 1.0:
            tokens[i] = sample_row(logits[i], row)
    return tokens


def sample_row(logits: torch.Tensor, row: Row) -> int:
    """Token id of one row of logits [V]."""
    params = row.params
    logits = penalised(logits, row)
    if params.temperature == 0:
        return int(logits.argmax())
    probs, ids = allowed(logits, params)
    # Inverse transform: the first token at which the cumulated share passes u. With "right" a
    # token of probability zero is never hit; the clamp guards the last rounding of the sum.
    cumulated = probs.cumsum(0)
    u = uniform(row.seed, row.index) * float(cumulated[-1])
    place = int(torch.searchsorted(cumulated, u, right=True))
    last = int(probs.nonzero()[-1])
    return int(ids[min(place, last)])


def penalised(logits: torch.Tensor, row: Row) -> torch.Tensor:
    """Logits [V] with the repetition penalty (Keskar et al. 2019) applied and bans set to -inf."""
    penalty = row.params.repetition_penalty
    if penalty == 1.0 and not row.banned:
        return logits
    logits = logits.clone()
    if penalty != 1.0:
        seen = torch.tensor(sorted(set(row.history)), dtype=torch.int64, device=logits.device)
        values = logits[seen]
        logits[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if row.banned:
        logits[torch.tensor(list(row.banned), device=logits.device)] = -torch.inf
    return logits


def allowed(logits: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities (float64, not renormalised) and ids of the tokens that may be drawn.

    With top_k or top_p both are sorted, most likely first, equal ones by id; else they are in
    order of id.
    """
    probs = torch.softmax(logits.double() / params.temperature, dim=-1)
    if params.min_p > 0:
        probs = torch.where(probs >= params.min_p * probs.max(), probs, 0.0)
    ids = torch.arange(len(probs), device=probs.device)
    if params.top_k <= 0 and params.top_p >= 1:
        return probs, ids
    probs, ids = probs.sort(descending=True, stable=True)
    if params.top_k > 0:
        probs, ids = probs[: params.top_k], ids[: params.top_k]
    if params.top_p < 1:
        # The smallest set that reaches top_p of what top_k left; the first one always stays.
        before = probs.cumsum(0) - probs
        keep = before < params.top_p * probs.sum()
        probs, ids = probs[keep], ids[keep]
    return probs, ids


def logprobs_of(logits: torch.Tensor, token_id: int, top: int) -> TokenLogprob:
    """Log-probabilities of one row of logits [V]: the chosen token's and the `top` best."""
    values = torch.log_softmax(logits.double(), dim=-1)
    best = values.topk(top)
    pairs = list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    chosen = float(values[token_id])
    return TokenLogprob(token_id, chosen, int((values > chosen).sum()) + 1, pairs)


_MASK = 2**64 - 1


def _mix(z: int) -> int:
    """The output function of SplitMix64 (Steele, Lea, Flood 2014)."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) that depends on (seed, index) alone."""
    state = (_mix((seed + 0x9E3779B97F4A7C15) & _MASK) + index * 0x9E3779B97F4A7C15) & _MASK
    return (_mix(state) >> 11) * 2.0**-53

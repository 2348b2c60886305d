"""The sampler for a whole batch at once, on the logits' device; reading back is a step apart.

The same rules, the same random numbers and the same ids as `sampler.sample`, row by row (a test
holds it); there the rules are easier to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from llmlab.engine.sampler import Row, uniform


class Sampled:
    """Tokens of one step that may still be on their way: `tokens` [S] int64, on the device.

    A token is -1 where its logits were not finite. On CUDA the copy to the host is under way as
    soon as this exists, and waits for nothing but the work before it.
    """

    def __init__(self, tokens: torch.Tensor) -> None:
        self.tokens = self._host = tokens
        self._ready: Any = None
        if tokens.is_cuda:
            self._host = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
            self._host.copy_(tokens, non_blocking=True)
            self._ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._ready.record()

    def read(self) -> list[int]:
        """The tokens, once they are here: the one wait of a step."""
        if self._ready is not None:
            self._ready.synchronize()
        found: list[int] = self._host.tolist()
        if -1 in found:
            raise ValueError(
                "logits are not finite: a NaN or infinity came out of the forward pass"
            )
        return found


def sample_on_device(logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """Token ids [S] int64 on the device, -1 for a row that is not finite; waits for nothing."""
    best = logits.max(dim=-1)
    tokens = best.indices
    changed = [i for i, row in enumerate(rows) if row.banned or row.params.repetition_penalty != 1]
    sources = penalised(logits, rows, changed) if changed else logits
    if changed:
        tokens = sources.argmax(dim=-1)
    drawn = [i for i, row in enumerate(rows) if row.params.temperature > 0]
    for needs_sort in (False, True):
        group = [i for i in drawn if _sorts(rows[i]) == needs_sort]
        if group:
            index = upload(group, torch.int64, logits.device)
            picked = sources if len(group) == len(rows) else sources[index]
            tokens = tokens.index_copy(0, index, draw(picked, [rows[i] for i in group], needs_sort))
    return torch.where(torch.isfinite(best.values), tokens, -1)


def _sorts(row: Row) -> bool:
    return row.params.top_k > 0 or row.params.top_p < 1


def upload(values: Sequence[Any], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A list on the device, without waiting for it."""
    tensor = torch.tensor(values, dtype=dtype)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def penalised(logits: torch.Tensor, rows: Sequence[Row], changed: Sequence[int]) -> torch.Tensor:
    """A copy of logits [S, V] with repetition penalties and bans of the rows `changed`."""
    logits = logits.clone()
    seen = [(i, token) for i in changed for token in _repeated(rows[i])]
    if seen:
        at = upload([i for i, _ in seen], torch.int64, logits.device)
        token = upload([t for _, t in seen], torch.int64, logits.device)
        penalties = [rows[i].params.repetition_penalty for i, _ in seen]
        penalty = upload(penalties, logits.dtype, logits.device)
        values = logits[at, token]
        logits[at, token] = torch.where(values > 0, values / penalty, values * penalty)
    banned = [(i, token) for i in changed for token in rows[i].banned]
    if banned:
        at = upload([i for i, _ in banned], torch.int64, logits.device)
        token = upload([t for _, t in banned], torch.int64, logits.device)
        logits.index_put_((at, token), upload([-torch.inf], logits.dtype, logits.device))
    return logits


def _repeated(row: Row) -> list[int]:
    return sorted(set(row.history)) if row.params.repetition_penalty != 1 else []


def draw(logits: torch.Tensor, rows: Sequence[Row], needs_sort: bool) -> torch.Tensor:
    """Token ids [n] drawn from logits [n, V] of rows with a temperature above 0."""
    device, vocab = logits.device, logits.shape[1]

    def column(values: Sequence[float], dtype: torch.dtype = torch.float64) -> torch.Tensor:
        return upload(values, dtype, device)[:, None]  # [n, 1]

    params = [row.params for row in rows]
    probs = torch.softmax(logits.double() / column([p.temperature for p in params]), dim=-1)
    min_p = column([p.min_p for p in params])
    probs = torch.where(probs >= min_p * probs.amax(-1, keepdim=True), probs, 0.0)
    ids = None
    if needs_sort:
        probs, ids = probs.sort(dim=-1, descending=True, stable=True)
        top_k = column([p.top_k if p.top_k > 0 else vocab for p in params], torch.int64)
        probs = torch.where(torch.arange(vocab, device=device) < top_k, probs, 0.0)
        # The smallest set that reaches top_p of what top_k left; the first one always stays.
        before = probs.cumsum(-1) - probs
        share = column([p.top_p if p.top_p < 1 else 2.0 for p in params])
        probs = torch.where(before < share * probs.sum(-1, keepdim=True), probs, 0.0)
    cumulated = probs.cumsum(-1)
    u = column([uniform(row.seed, row.index) for row in rows]) * cumulated[:, -1:]
    place = torch.searchsorted(cumulated, u, right=True)  # [n, 1]
    # The clamp guards the last rounding of the sum: the last token that has any probability.
    last = torch.where(probs > 0, torch.arange(vocab, device=device), 0).amax(-1, keepdim=True)
    place = torch.minimum(place, last)
    return place[:, 0] if ids is None else ids.gather(1, place)[:, 0]

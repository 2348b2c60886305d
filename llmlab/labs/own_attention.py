"""A learner's paged decode attention: its check on ragged batches, and its place in the engine.

def paged_decode(q, k_cache, v_cache, block_table, context_len): ...
Engine(model, attention=attention_from(paged_decode))
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch

from llmlab.check.result import Result
from llmlab.engine.attention import Attention, paged_attention
from llmlab.engine.batch import Batch
from llmlab.labs.code_check import Try, check_code

EXERCISE = "C4.paged-decode"

# q [R, Hq, D], k_cache and v_cache [N, B, Hkv, D], block_table [R, M], context_len [R]
PagedDecode = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor
]


@dataclass(frozen=True)
class Case:
    """A ragged batch, and the same keys and values per request without blocks: [C, Hkv, D]."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_table: torch.Tensor
    context_len: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]

    def arguments(self) -> tuple[torch.Tensor, ...]:
        """Copies for the learner's function, which may write into them."""
        whole = (self.q, self.k_cache, self.v_cache, self.block_table, self.context_len)
        return tuple(tensor.clone() for tensor in whole)

    def __str__(self) -> str:
        _, size, kv_heads, _ = self.k_cache.shape
        heads = self.q.shape[1]
        return (
            f"contexts {self.context_len.tolist()}, blocks of {size}, "
            f"{heads} query heads, {kv_heads} KV heads"
        )


def random_case(rng: random.Random) -> Case:
    """Blocks in no order, NaN in every slot not written, the first block at times shared."""
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    size, kv_heads, group = rng.choice((1, 4, 8)), rng.choice((1, 2, 3)), rng.choice((1, 2, 3))
    dim = rng.choice((4, 8))
    contexts = [rng.randint(1, 40) for _ in range(rng.randint(1, 5))]
    tables = [-(-context // size) for context in contexts]
    blocks = rng.sample(range(sum(tables) + 2), sum(tables) + 2)
    shape = (len(blocks), size, kv_heads, dim)
    k_cache, v_cache = torch.full(shape, torch.nan), torch.full(shape, torch.nan)
    block_table = torch.zeros(len(contexts), max(tables), dtype=torch.int32)
    share = rng.random() < 0.3 and all(context > size for context in contexts)
    first = blocks.pop()
    keys: list[torch.Tensor] = []
    values: list[torch.Tensor] = []
    for r, (context, length) in enumerate(zip(contexts, tables, strict=True)):
        table = [blocks.pop() for _ in range(length)]
        if share:
            table[0] = first
        block_table[r, :length] = torch.tensor(table)
        slots = torch.tensor([table[p // size] * size + p % size for p in range(context)])
        for cache, rows in ((k_cache, keys), (v_cache, values)):
            new = torch.randn(context, kv_heads, dim, generator=generator)
            flat = cache.flatten(0, 1)  # [N * B, Hkv, D], a view
            if share and r > 0:
                new[:size] = flat[slots[:size]]  # what the first request wrote stays
            flat[slots] = new
            rows.append(new)
    q = torch.randn(len(contexts), kv_heads * group, dim, generator=generator)
    lengths = torch.tensor(contexts, dtype=torch.int32)
    return Case(q, k_cache, v_cache, block_table, lengths, keys, values)


def dense_decode(
    q: torch.Tensor,
    keys: list[torch.Tensor],
    values: list[torch.Tensor],
    *,
    scaled: bool = True,
    interleaved: bool = False,
) -> torch.Tensor:
    """The reference in float64, request by request, no blocks: [R, Hq, D].

    scaled False and interleaved True (query head h reads KV head h % Hkv) are usual mistakes.
    """
    out = []
    for query, k, v in zip(q.double(), keys, values, strict=True):
        heads, kv_heads = query.shape[0], k.shape[1]
        group = heads // kv_heads
        of = torch.arange(heads) % kv_heads if interleaved else torch.arange(heads) // group
        k, v = k.double()[:, of], v.double()[:, of]  # [C, Hq, D]
        scores = torch.einsum("hd,chd->hc", query, k)
        weights = (scores * query.shape[1] ** (-0.5 if scaled else 0)).softmax(-1)
        out.append(torch.einsum("hc,chd->hd", weights, v))
    return torch.stack(out)


def check_paged_decode(mine: PagedDecode, cases: int = 60, seed: int = 0) -> Result:
    """Try the learner's function on ragged batches; the first one that goes wrong is shown."""
    done = f"{cases} ragged batches, all as the reference."
    return check_code(EXERCISE, _tries(mine, cases, random.Random(seed)), done)


def _tries(mine: PagedDecode, cases: int, rng: random.Random) -> Iterator[Try]:
    for _ in range(cases):
        case = random_case(rng)
        given = case.arguments()
        yield Try(str(case), partial(mine, *given), partial(fault, case, given))


def fault(case: Case, given: tuple[torch.Tensor, ...], answer: object) -> str | None:
    """What is wrong with an answer, as a sentence's end; None if nothing is."""
    shape = tuple(case.q.shape)
    if not isinstance(answer, torch.Tensor) or tuple(answer.shape) != shape:
        got = tuple(answer.shape) if isinstance(answer, torch.Tensor) else type(answer).__name__
        return f"returns {got}: must be a tensor of shape {shape}"
    for after, before in zip(given[1:3], (case.k_cache, case.v_cache), strict=True):
        if not torch.equal(after.isnan(), before.isnan()) or not _near(after, before):
            return "writes into the cache: decode attention only reads it"
    if bool(answer.isnan().any()):
        return "gives NaN: it reads a slot that was never written (0 · NaN is NaN, a mask is late)"
    if _near(answer, dense_decode(case.q, case.keys, case.values)):
        return None
    for flags, what in (
        ({"scaled": False}, "leaves out the scale 1 / sqrt(D)"),
        ({"interleaved": True}, "gives query head h KV head h % Hkv: heads share in groups"),
    ):
        if _near(answer, dense_decode(case.q, case.keys, case.values, **flags)):
            return what
    off = (answer.double() - dense_decode(case.q, case.keys, case.values)).abs().amax((1, 2))
    return f"is wrong for request {int(off.argmax())}, by {float(off.max()):.2g}"


def _near(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-5, equal_nan=True)


def attention_from(mine: PagedDecode) -> Attention:
    """An attention for `Engine(model, attention=...)`: requests with one query go to `mine`.

    Prompts of more than one token in a step stay with the library. ValueError on a wrong shape.
    """

    def attention(
        q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, batch: Batch
    ) -> torch.Tensor:
        rows = [r for r, n in enumerate(batch.query_lens) if n == 1]
        if not rows:
            return paged_attention(q, k_cache, v_cache, batch)
        starts = [0, *accumulate(batch.query_lens)]
        tokens, pick = [starts[r] for r in rows], torch.tensor(rows)
        decodes = q[tokens]  # [R, Hq, D]
        answer = mine(decodes, k_cache, v_cache, batch.block_table[pick], batch.context_len[pick])
        if not isinstance(answer, torch.Tensor) or answer.shape != decodes.shape:
            raise ValueError(f"paged_decode must return a tensor of shape {tuple(decodes.shape)}")
        if len(rows) == len(batch.query_lens):
            return answer
        out = paged_attention(q, k_cache, v_cache, batch)
        out[tokens] = answer
        return out

    return attention

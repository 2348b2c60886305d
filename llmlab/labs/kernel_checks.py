"""The checks of lab 10's kernels: the KV write, and paged decode.

Both kernels run in the watched interpreter, whatever the machine; what is right there runs on the
GPU too, if there is one. A wrong answer is compared with what the usual mistakes would give, and
the one that fits is named. The right tensor is never shown.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from llmlab.check.result import Result
from llmlab.labs.code_check import failed, not_yet, passed
from llmlab.labs.decode_cases import (
    CASES,
    DEAD_LANES,
    DecodeCase,
    largest_score,
    mistake,
    near,
    reference,
)
from llmlab.labs.own_kernels import decode, lanes, unanswered, write_kv
from llmlab.labs.own_triton import NO_TRITON, OutOfBounds, available, on_gpu, watching

WRITE, DECODE = "A2.kv-write-kernel", "A2.decode-kernel"
UNWRITTEN = 12345.0  # what an output holds before the kernel runs
MASK = "it loads slots that no token owns, and 0 · NaN is NaN; mask the loads of keys and values"


@contextmanager
def _running(device: str, undefined: float = float("nan")) -> Iterator[None]:
    """On "cpu" interpreted and watched, without numpy's remarks about NaN and infinity."""
    if device != "cpu":
        yield
        return
    with warnings.catch_warnings(), watching(undefined):
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def _raised(error: BaseException) -> str:
    """An exception as the end of a sentence; the interpreter wraps what a kernel raised."""
    inner = error.__cause__ or error
    if isinstance(inner, OutOfBounds):
        return f"goes outside its tensors: {inner}; look at its indices and its mask"
    return f"raises {type(inner).__name__}: {inner}"


# ---------------------------------------------------------------- the KV write


class Write(NamedTuple):
    """A step's keys and values, one row a slot; -1: padding. The caches hold 20 slots."""

    kv_heads: int
    head_dim: int
    block_size: int
    slots: tuple[int, ...]

    @property
    def row(self) -> int:
        """Values of one token's keys in a layer."""
        return self.kv_heads * self.head_dim

    def __str__(self) -> str:
        return (
            f"{self.kv_heads} KV heads, head_dim {self.head_dim} (ROW {self.row}), "
            f"slots {list(self.slots)}"
        )


WRITES = (
    Write(2, 8, 4, (5, 0, 14)),
    Write(3, 4, 4, (7, 2, 15, 9)),  # 12 values a row: the program's 16 lanes are too many
    Write(1, 8, 1, (3, -1, 0, -1, 6)),
    Write(3, 8, 5, (-1, 19, -1, 4)),
)


def check_kv_write(kernel: Any) -> Result:
    """Small steps with padded rows and rows of any length; compared bit by bit."""
    if (nothing := _no_kernel(WRITE, kernel)) is not None:
        return nothing
    for seed, step in enumerate(WRITES):
        try:
            said = _write_fault(kernel, step, seed)
        except Exception as error:
            said = _raised(error)
            outside, row = isinstance(error.__cause__, OutOfBounds), step.row
            if outside and -1 in step.slots:
                said = f"stores for slot -1, a row of padding: {error.__cause__}"
            elif outside and row < lanes(row):
                said += f"; of {lanes(row)} lanes only the first {row} are the row's"
        if said is not None:
            return failed(WRITE, f"With {step} it {said}.")
    if on_gpu() and (said := _write_fault(kernel, WRITES[-1], 9, "cuda")):
        return failed(WRITE, f"Right in the interpreter, but compiled for the GPU it {said}.")
    return passed(WRITE, f"{len(WRITES)} steps, every slot as it should be, padded rows too.")


def _no_kernel(exercise: str, kernel: Any) -> Result | None:
    """What there is to say where no kernel can be tried; None where one can."""
    if not available:
        return not_yet(exercise, NO_TRITON)
    if unanswered(kernel):
        return not_yet(exercise)
    if not hasattr(kernel, "fn"):
        return Result(exercise, "incorrect", "This is no kernel: keep @triton.jit above its def.")
    return None


def _write_fault(kernel: Any, step: Write, seed: int, device: str = "cpu") -> str | None:
    heads, dim, page, slots = step
    gen = torch.Generator().manual_seed(seed)
    k, v = (torch.randn(len(slots), heads, dim, generator=gen).to(device) for _ in range(2))
    before = torch.randn(2, 20 // page, page, heads, dim, generator=gen).to(device)
    caches = before.clone()  # [2, N, B, Hkv, D]: keys, values
    at = torch.tensor(slots, device=device)
    with _running(device):
        write_kv(kernel, k, v, caches[0], caches[1], at)
    flat, old = caches.flatten(1, 2), before.flatten(1, 2)  # [2, N * B, Hkv, D]
    right = old.clone()
    for row, slot in enumerate(slots):
        if slot >= 0:
            right[0, slot], right[1, slot] = k[row], v[row]
    if torch.equal(flat, right):
        return None
    return _write_mistake(flat, old, right, k, v, slots)


def _write_mistake(
    flat: torch.Tensor,
    old: torch.Tensor,
    right: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    slots: tuple[int, ...],
) -> str:
    """Names what is wrong with caches that differ from the right ones."""
    if torch.equal(flat, old):
        return "stores nothing"
    swapped, in_order = right.clone(), old.clone()
    for row, slot in enumerate(slots):
        in_order[0, row], in_order[1, row] = k[row], v[row]
        if slot >= 0:
            swapped[0, slot], swapped[1, slot] = v[row], k[row]
    if torch.equal(flat, swapped):
        return "puts keys into v_cache and values into k_cache"
    if torch.equal(flat, in_order):
        return "puts row t into slot t: the slot has to be looked up, slots[t]"
    for cache, name in ((0, "k_cache"), (1, "v_cache")):
        if torch.equal(flat[cache], old[cache]):
            return f"stores nothing into {name}"
    for row in (row for row, slot in enumerate(slots) if slot < 0):
        # [N * B, Hkv * D]: the slots that hold the whole row
        hit = (flat[0] == k[row]).flatten(1).all(1).nonzero()
        if len(hit):
            return f"writes a padded row into slot {int(hit[0])}: for slot -1 nothing may be stored"
    owned = {slot for slot in slots if slot >= 0}
    changed = (flat != old).flatten(2).any(2)  # [2, N * B]
    strays = [s for s in range(flat.shape[1]) if s not in owned and bool(changed[:, s].any())]
    if strays:
        return (
            f"changes slot {strays[0]}, which no token of this step owns: is the last value of a "
            "row the last one stored?"
        )
    wrong = (flat != right).flatten(2)  # [2, N * B, Hkv * D]
    bad = int(wrong.any(2).any(0).nonzero()[0])
    part = int(wrong[:, bad].sum(1).max())
    return f"leaves {part} of {k[0].numel()} values of slot {bad} wrong"


# ---------------------------------------------------------------- paged decode


def check_decode(kernel: Any) -> Result:
    """Ragged batches at the edges of blocks and tiles; the first wrong one is shown."""
    if (nothing := _no_kernel(DECODE, kernel)) is not None:
        return nothing
    for case in CASES:
        try:
            said = _decode_fault(kernel, case)
        except Exception as error:
            said = _raised(error)
        if said is not None:
            return failed(DECODE, f"With {case} it {said}.")
    if on_gpu():
        for case in CASES:
            if (said := _decode_fault(kernel, case, device="cuda")) is not None:
                return failed(
                    DECODE, f"Right in the interpreter, but on the GPU with {case} it {said}."
                )
    return passed(DECODE, f"{len(CASES)} ragged batches, all as dense attention in float64.")


def _run(
    kernel: Any, case: DecodeCase, device: str, undefined: float = float("nan")
) -> tuple[torch.Tensor, bool]:
    """The kernel's answer on the host, and whether it left its inputs alone."""
    moved = case.to(device)
    given = moved.tensors()
    out = torch.full_like(given[0], UNWRITTEN)
    with _running(device, undefined):
        decode(kernel, *given, block_n=case.block_n, out=out)
    kept = zip(given, moved.tensors(), strict=True)
    same = all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in kept)
    return out.cpu(), same


def _decode_fault(kernel: Any, case: DecodeCase, device: str = "cpu") -> str | None:
    answer, kept = _run(kernel, case, device)
    if not kept:
        return "stores into its inputs: decode attention only reads them"
    empty = (answer == UNWRITTEN).any(2).nonzero()
    if len(empty):
        r, head = empty[0].tolist()
        return f"stores nothing, or not all, for request {r}, head {head}"
    right = reference(case)
    if near(answer, right):
        return None
    if not bool(answer.isfinite().all()):
        return _not_finite(kernel, case, device, right)
    return mistake(case, answer) or _off(case, answer, right)


def _not_finite(kernel: Any, case: DecodeCase, device: str, right: torch.Tensor) -> str:
    """Why there is NaN: it hides everything else, so the kernel runs again without its sources."""
    if near(_run(kernel, case, device, undefined=0.0)[0], right):
        return "gives NaN: a masked lane without other=0.0 holds anything, and 0 · NaN is NaN"
    case = case.clean()  # zeros where no token wrote
    answer, _ = _run(kernel, case, device, undefined=0.0)
    if near(answer, right):
        return f"gives NaN: {MASK}"
    largest = largest_score(case)
    if largest > 80 and not bool(answer.isfinite().all()):
        return (
            "gives NaN or inf: scores are in the hundreds here, and exp of that is inf; take the "
            "largest score so far off first"
        )
    named = mistake(case, answer)
    if named is not None:
        return f"gives NaN: {MASK}, and their scores are -inf" if named == DEAD_LANES else named
    if bool(answer.isfinite().all()):
        return f"gives NaN ({MASK}), and without it {_off(case, answer, right)}"
    r = int((~answer.isfinite()).flatten(1).any(1).nonzero()[0])  # of [R, Hq * D]
    return (
        f"gives NaN for request {r} of context {int(case.context_len[r])}, though every slot is "
        "written: no key was folded there, so it divides 0 by 0"
    )


def _off(case: DecodeCase, answer: torch.Tensor, right: torch.Tensor) -> str:
    off = (answer.double() - right).abs().amax(2)
    r, head = divmod(int(off.argmax()), off.shape[1])
    if case.q.dtype == torch.float16:
        return (
            f"is off by {float(off.max()):.1g}, though it is right in float32: cast to float32 "
            "before you multiply and add"
        )
    return f"is wrong for request {r}, head {head}, by {float(off.max()):.2g}"

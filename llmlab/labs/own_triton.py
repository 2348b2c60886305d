"""Triton for a notebook: compiled where there is a GPU, and watched where there is none.

    from llmlab.labs.own_triton import tl, triton, watching

`triton` and `tl` are Triton itself. Without a CUDA device a kernel that is decorated from here on
runs in Triton's interpreter on the CPU, one program after the other. Triton reads its flag at two
moments: when its own library (tl.sum, tl.max, ...) is imported and when a kernel is decorated.
A notebook may be past the first, so that case is mended here.

The interpreter works on raw addresses: a wrong pointer would end the kernel of the notebook. Here
every load and store is held against the tensors that were passed in, and the first one outside
is an error that says which program did it. `watching()` also keeps a list of them. Where a load
has a mask but no `other`, what comes back is undefined on a GPU; here it is NaN.

Triton exists for Linux on x86-64. Elsewhere `triton` is a stand-in whose kernels say so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from llmlab.labs.kernel_loads import Access, Seen

NO_TRITON = (
    "Triton exists for Linux on x86-64 only, so no kernel runs here. The page goes on: the "
    "pictures, the softmax exercise in torch, the formula and the measurement need none."
)


class OutOfBounds(Exception):
    """A program loads or stores outside every tensor that the kernel was given."""


def on_gpu() -> bool:
    """Whether kernels are compiled and run on a CUDA device here."""
    return torch.cuda.is_available()


@dataclass(frozen=True)
class _Range:
    """The addresses of one tensor argument."""

    name: str
    start: int
    end: int
    itemsize: int


def _range(name: str, tensor: torch.Tensor) -> _Range:
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    size = tensor.element_size()
    start = tensor.data_ptr()
    return _Range(name, start, start + (last + 1) * size if tensor.numel() else start, size)


_open: list[Seen] = []


@contextmanager
def watching(undefined: float = float("nan")) -> Iterator[Seen]:
    """Launches inside run in the watched interpreter, on a machine with a GPU too.

    undefined: what a masked lane of a load without `other` holds.
    """
    seen = Seen(undefined=undefined)
    _open.append(seen)
    try:
        with _no_compiling():
            yield seen
    finally:
        _open.remove(seen)


# ---------------------------------------------------------------- the watched interpreter


class _Guard:
    """Holds the loads and stores of one launch against its tensors."""

    def __init__(self, builder: Any, ranges: list[_Range]) -> None:
        self.builder, self.ranges = builder, ranges

    def check(self, pointers: Any, mask: Any, itemsize: int, store: bool) -> None:
        lanes_on = np.broadcast_to(mask, pointers.shape).astype(bool)  # some masks are 0 and 1
        addresses = pointers[lanes_on].astype(np.int64)
        lanes, active = int(pointers.size), int(addresses.size)
        if not active:
            return
        low, high = int(addresses.min()), int(addresses.max()) + itemsize
        inside = [r for r in self.ranges if r.start <= low and high <= r.end]
        if not inside:
            raise OutOfBounds(self._complaint(addresses, itemsize, store))
        place = inside[0]
        program = tuple(int(i) for i in self.builder.grid_idx)
        index = (addresses - place.start) // place.itemsize
        for seen in _open:
            first, last = int(index.min()), int(index.max())
            seen.accesses.append(
                Access(program, place.name, store, first, last, lanes, active, active * itemsize)  # type: ignore[arg-type]
            )
            if not store:
                empty = np.zeros((place.end - place.start) // place.itemsize, dtype=bool)
                hit, _ = seen.touched.setdefault(place.name, (empty, place.itemsize))
                hit[index] = True

    def _complaint(self, addresses: Any, itemsize: int, store: bool) -> str:
        """The first element outside, told as a place in the tensor that lies nearest."""

        def away(r: _Range, address: int) -> int:
            return max(r.start - address, address + itemsize - r.end, 0)

        outside = [int(a) for a in addresses if all(away(r, int(a)) for r in self.ranges)]
        # A tile may also touch two tensors: then each address lies in one, but not all in the same.
        address = outside[0] if outside else int(addresses[-1])
        # The tensor that most of the tile is nearest to is the one that was meant.
        middle = int(np.median(addresses))
        place = min(self.ranges, key=lambda r: (away(r, middle), away(r, address)))
        index = (address - place.start) // place.itemsize
        count = (place.end - place.start) // place.itemsize
        what = "stores to" if store else "loads"
        where = (
            "before its first"
            if index < 0
            else f"but its last element is {place.name}[{count - 1}]"
        )
        program = ", ".join(str(int(i)) for i in self.builder.grid_idx)
        return f"program ({program}) {what} {place.name}[{index}], {where}"


def _watched(interpreter: Any) -> type:
    """Triton's executor of a grid, with a guard around each launch."""
    plain: Any = interpreter.GridExecutor

    class Watched(plain):  # type: ignore[misc]
        def __call__(self, *args: Any, **kwargs: Any) -> None:
            with _guarded(interpreter, dict(zip(self.arg_names, args, strict=False)) | kwargs):
                grid = self.grid if isinstance(self.grid, tuple) else ()
                for seen in _open:
                    seen.programs += int(np.prod(grid)) if grid else 0
                super().__call__(*args, **kwargs)

    return Watched


@contextmanager
def _guarded(interpreter: Any, arguments: dict[str, Any]) -> Iterator[None]:
    builder = interpreter.interpreter_builder
    load, store = builder.create_masked_load, builder.create_masked_store
    from triton.runtime.jit import JITFunction

    tensors = {n: a for n, a in arguments.items() if isinstance(a, torch.Tensor) and a.is_cpu}
    # Tensors on a card are copied to the host first: their addresses are not known here.
    guard = _Guard(builder, [_range(n, t) for n, t in tensors.items()])
    whole = len(tensors) == sum(isinstance(a, torch.Tensor) for a in arguments.values())

    def masked_load(pointers: Any, mask: Any, other: Any, *rest: Any) -> Any:
        kind = interpreter._get_np_dtype(pointers.get_element_ty())
        if whole:
            guard.check(pointers.data, mask.data, np.dtype(kind).itemsize, store=False)
        if other is None and np.issubdtype(kind, np.floating):
            fill = _open[-1].undefined if _open else np.nan
            nothing = np.full_like(pointers.data, fill, dtype=kind)
            other = interpreter.TensorHandle(nothing, pointers.get_element_ty())
        return load(pointers, mask, other, *rest)

    def masked_store(pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        if whole:
            guard.check(pointers.data, mask.data, value.data.dtype.itemsize, store=True)
        return store(pointers, value, mask, *rest)

    # tl.core too: Triton's own functions, interpreted from inside a kernel, use that one.
    both = SimpleNamespace(__globals__={"tl": interpreter.tl, "core": interpreter.tl.core})
    scope = interpreter._patch_lang(both)
    scope.set_attr(builder, "create_masked_load", masked_load)
    scope.set_attr(builder, "create_masked_store", masked_store)
    for function in (JITFunction, interpreter.InterpretedFunction):
        scope.set_attr(function, "__call__", _interpret_call(interpreter))
    try:
        yield
    finally:
        scope.restore()


def _interpret_call(interpreter: Any) -> Callable[..., Any]:
    """How a kernel calls another jitted function (tl.max, or a helper) while it is interpreted."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        known = interpreter.InterpretedFunction.rewritten_fn
        if self.fn not in known:
            known[self.fn] = interpreter.InterpretedFunction(self.fn).rewriter.rewrite_ast()
        return known[self.fn](*args, **kwargs)

    return call


@contextmanager
def _no_compiling() -> Iterator[None]:
    """Launches of compiled kernels are interpreted instead."""
    if not available:
        yield
        return
    from triton.runtime import interpreter
    from triton.runtime.jit import JITFunction

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        interpreter.InterpretedFunction(self.fn).run(*args, grid=grid, warmup=warmup, **kwargs)

    plain = JITFunction.run
    JITFunction.run = run
    try:
        yield
    finally:
        JITFunction.run = plain


# ---------------------------------------------------------------- Triton, or why it is not here


class _NoKernel:
    """What `@triton.jit` makes where there is no Triton: its launch says so and does nothing."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return lambda *args, **kwargs: print(f"○ {self.fn.__name__} did not run. {NO_TRITON}")


def _load() -> tuple[Any, Any, bool]:
    if not on_gpu():
        os.environ["TRITON_INTERPRET"] = "1"
    try:
        import triton
        import triton.language as language
        from triton.runtime import interpreter
    except ImportError:
        return SimpleNamespace(jit=_NoKernel), SimpleNamespace(constexpr=int), False
    # An interpreter without the parts that are used here still runs kernels, unwatched.
    if hasattr(interpreter, "_LangPatchScope"):
        interpreter.GridExecutor = _watched(interpreter)
    return triton, language, True


triton, tl, available = _load()


def where() -> str:
    """Where kernels run here, in a sentence."""
    if not available:
        return NO_TRITON
    if on_gpu():
        return f"Triton {triton.__version__}, compiled for {torch.cuda.get_device_name()}."
    return f"Triton {triton.__version__} in its interpreter, on the CPU: right or wrong, not fast."

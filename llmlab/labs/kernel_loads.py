"""What programs of a kernel load and store, as the watched interpreter (`own_triton`) saw it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from llmlab.viz.show import shown_table


@dataclass(frozen=True)
class Access:
    """One load or store of one program: elements `first` .. `last` of a tensor.

    lanes: values asked for; active: those that the mask let through.
    """

    program: tuple[int, int, int]
    tensor: str
    store: bool
    first: int
    last: int
    lanes: int
    active: int
    bytes: int


@dataclass
class Seen:
    """What the launches inside `watching()` did."""

    accesses: list[Access] = field(default_factory=list)
    programs: int = 0
    undefined: float = float("nan")
    touched: dict[str, Any] = field(default_factory=dict)

    def loaded(self, *names: str) -> int:
        """Bytes that programs loaded from these tensors, each load counted."""
        return sum(a.bytes for a in self.accesses if a.tensor in names and not a.store)

    def stored(self, *names: str) -> int:
        """Bytes that programs stored into these tensors."""
        return sum(a.bytes for a in self.accesses if a.tensor in names and a.store)

    def distinct(self, *names: str) -> int:
        """Bytes of these tensors that some program loaded, each byte counted once."""
        return sum(int(hit.sum()) * size for n, (hit, size) in self.touched.items() if n in names)

    def rows(self) -> list[list[str]]:
        """One row a load or store: program, what, elements, lanes that the mask let through."""
        return [
            [
                ", ".join(map(str, a.program)),
                "store" if a.store else "load",
                f"{a.tensor}[{a.first}]"
                if a.first == a.last
                else f"{a.tensor}[{a.first} .. {a.last}]",
                f"{a.active} of {a.lanes}",
            ]
            for a in self.accesses
        ]

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        caption = f"{self.programs} programs, in the order in which the interpreter ran them"
        shown = shown_table(caption, ["program", "does", "elements", "lanes"], self.rows())
        return shown._repr_mimebundle_()

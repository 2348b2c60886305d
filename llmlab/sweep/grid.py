"""A grid: named axes, each with its values; a cell is one value of each.

Values are written as a list with commas, and ranges in it: `2:10:2` is 2, 4, 6, 8, 10 and
`256:2048:x2` is 256, 512, 1024, 2048 (both ends count). Cells are made when asked for, never all
at once, so a grid of a million costs nothing.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MOST_CELLS = 1_000_000
MOST_VALUES = 100_000

# Name -> kind of its values; the order is that of cells: the last axis changes fastest.
AXES = {
    "model": "name",
    "hardware": "name",
    "tensor_parallel": "count",
    "workload": "name",
    "mix": "mix",
    "seed": "whole",
    "users": "count",
    "rate": "rate",
    "policy": "name",
    "max_num_seqs": "count",
    "max_num_batched_tokens": "count",
}
Cell = dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """Axes in the order of AXES, each with at least one value; None = left as it is."""

    axes: dict[str, tuple[Any, ...]]

    def __post_init__(self) -> None:
        if len(self) > MOST_CELLS:
            sizes = " x ".join(str(len(v)) for v in self.axes.values() if len(v) > 1)
            raise ValueError(f"the grid has {sizes} = {len(self):,} cells; at most {MOST_CELLS:,}")

    def __len__(self) -> int:
        return math.prod(len(values) for values in self.axes.values())

    def __getitem__(self, number: int) -> Cell:
        """Cell `number`, counted with the last axis fastest."""
        if not 0 <= number < len(self):
            raise IndexError(f"cell {number}: the grid has {len(self)}")
        cell: Cell = {}
        for name in reversed(self.axes):
            number, at = divmod(number, len(self.axes[name]))
            cell[name] = self.axes[name][at]
        return {name: cell[name] for name in self.axes}

    def __iter__(self) -> Iterator[Cell]:
        return (self[number] for number in range(len(self)))

    @property
    def varying(self) -> list[str]:
        """Axes with more than one value."""
        return [name for name, values in self.axes.items() if len(values) > 1]

    def to_dict(self) -> dict[str, list[Any]]:
        return {name: list(values) for name, values in self.axes.items()}


def read_grid(given: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Grid:
    """A grid from axis -> text, value or list of these; `defaults` for axes not given.

    Raises ValueError that names the axis, the value and what is allowed.
    """
    for name in given:
        if name not in AXES:
            raise ValueError(f"axis {name!r}: {_near(name)}")
    given = {name: value for name, value in given.items() if value is not None}
    if "rate" in given and "users" in given:
        raise ValueError("rate and users: give one of them, an open or a closed loop")
    axes = {}
    for name, kind in AXES.items():
        value = given.get(name, (defaults or {}).get(name))
        axes[name] = (None,) if value is None else values(name, kind, value)
    return Grid(axes)


def read_grid_file(path: Path) -> dict[str, Any]:
    """A YAML file `axis: values`, not yet read as values; ValueError names the file."""
    try:
        # All plain text: YAML's own reading makes 181 of the mix 3:1, and 4081 of the range 1:8:1.
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # noqa: S506
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a YAML file: {error}") from None
    if not isinstance(data, dict) or not data:
        raise ValueError(f"{path}: expected lines `axis: values`, with axes of {', '.join(AXES)}")
    for name in data:
        if name not in AXES:
            raise ValueError(f"{path}: {name!r}: {_near(str(name))}")
    return data


def values(name: str, kind: str, given: Any) -> tuple[Any, ...]:
    """The values of one axis, each once, in the order given."""
    parts = given if isinstance(given, (list, tuple)) else [given]
    found: list[Any] = []
    for part in parts:
        texts = part.split(",") if isinstance(part, str) else [part]
        for text in texts:
            found += _range(name, kind, text) if _is_range(kind, text) else [_one(name, kind, text)]
    if not found:
        raise ValueError(f"{name}: give at least one value")
    seen = set()
    for value in found:
        if value in seen:
            raise ValueError(f"{name}: {value} is there twice")
        seen.add(value)
    return tuple(found)


def _is_range(kind: str, text: Any) -> bool:
    return kind in ("count", "whole", "rate") and isinstance(text, str) and ":" in text


def _range(name: str, kind: str, text: str) -> list[Any]:
    """`START:END:STEP` or `START:END:xFACTOR`, both ends included."""
    parts = text.strip().split(":")
    wrong = f"{name} {text!r}: a range is START:END:STEP or START:END:xFACTOR"
    if len(parts) != 3:
        raise ValueError(wrong)
    times = parts[2].strip().startswith("x")
    start, end = (float(_one(name, kind, part)) for part in parts[:2])
    try:
        step = float(parts[2].strip().removeprefix("x"))
    except ValueError:
        raise ValueError(wrong) from None
    grows = step > 1 and start > 0 if times else step > 0
    if not (grows and math.isfinite(step) and start <= end < math.inf):
        raise ValueError(f"{wrong}, growing from START to END")
    count = math.log(end / start, step) if times else (end - start) / step
    if count > MOST_VALUES:
        raise ValueError(f"{name} {text!r}: more than {MOST_VALUES:,} values")
    found = []
    for i in range(int(count + 1e-9) + 1):
        value = start * step**i if times else start + step * i
        if kind != "rate" and value != round(value):
            raise ValueError(f"{name} {text!r}: {value:g} is no whole number")
        found.append(round(value, 9) if kind == "rate" else round(value))
    return found


def _one(name: str, kind: str, given: Any) -> Any:
    """One value, checked by the kind of its axis."""
    if kind == "name":
        text = str(given).strip()
        if not text or isinstance(given, (dict, bool)):
            raise ValueError(f"{name} = {given!r}: must be a name")
        return text
    if kind == "mix":
        return _mix(name, given)
    allowed = {
        "count": "a whole number >= 1",
        "whole": "a whole number >= 0",
        "rate": "requests/s > 0, or inf",
    }[kind]
    try:
        value = float(given)
    except (TypeError, ValueError):
        value = math.nan
    low = 1 if kind == "count" else 0
    fits = value > 0 if kind == "rate" else low <= value < 2**53 and value.is_integer()
    if isinstance(given, bool) or not fits:
        raise ValueError(f"{name} = {given!r}: must be {allowed}")
    if kind == "rate":
        return "inf" if math.isinf(value) else value
    return int(value)


def _mix(name: str, given: Any) -> str:
    """Shares of the workload's classes in their order, as `3:1`."""
    shares = str(given).strip().split(":")
    try:
        numbers = [float(share) for share in shares]
    except ValueError:
        numbers = []
    if not numbers or not all(0 < n < math.inf for n in numbers):
        raise ValueError(
            f"{name} = {given!r}: must be shares > 0 of the workload's classes, such as 3:1"
        )
    return ":".join(f"{n:g}" for n in numbers)


def _near(name: str) -> str:
    near = difflib.get_close_matches(name, AXES, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"{hint}axes are {', '.join(AXES)}"

"""One source, two notebooks: `labs/source/NAME.py` becomes the lab and its solution.

The source is jupytext's py:percent. A blank is written as

    ### BEGIN SOLUTION stub: ttft_ms = ...
    ttft_ms = 120 + 30
    ### END SOLUTION

The solution keeps the lines between the markers, the lab gets the stub instead (without `stub:`
it gets `raise NotImplementedError`). Cell tags `solution-only` and `lab-only` keep a cell out of
the other notebook. A fence marked `text` is a drawing: it keeps its lines. The build is a pure
function of the source: same text, same bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal, NamedTuple

Kind = Literal["lab", "solution"]

BEGIN = re.compile(r"^(\s*)### BEGIN SOLUTION(?: stub: (.*))?$")
END = re.compile(r"^\s*### END SOLUTION$")
MARKER = re.compile(r"#+\s*(BEGIN|END)\s+SOLUTION", re.IGNORECASE)
KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
PICTURE = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ONLY = {"lab-only": "lab", "solution-only": "solution"}


class SourceError(ValueError):
    """The source cannot be built; the message starts with file and line."""


@dataclass(frozen=True)
class Blank:
    """One solution block of the source: its lines, and the stub that replaces them."""

    cell: str
    line: int
    solution: tuple[str, ...]
    stub: str


def _fail(path: str, line: int, what: str) -> SourceError:
    return SourceError(f"{path}:{line}: {what}")


def split_blanks(lines: list[str], path: str, first_line: int, cell: str) -> list[str | Blank]:
    """Cut a cell's lines into plain lines and blanks; markers must balance and not nest."""
    out: list[str | Blank] = []
    opened: tuple[int, re.Match[str]] | None = None
    body: list[str] = []
    for number, line in enumerate(lines, first_line):
        begin, end = BEGIN.match(line), END.match(line)
        if MARKER.search(line) and not (begin or end):
            raise _fail(path, number, f"marker not alone on its line: {line.strip()!r}")
        if begin:
            if opened:
                raise _fail(path, number, f"BEGIN inside the block of line {opened[0]}")
            opened, body = (number, begin), []
        elif end:
            if not opened:
                raise _fail(path, number, "END without BEGIN")
            if not any(text.strip() for text in body):
                raise _fail(path, number, "empty solution block")
            indent, stub = opened[1].group(1), opened[1].group(2)
            stub = stub or 'raise NotImplementedError("write this part, then run the cell")'
            out.append(Blank(cell, opened[0], tuple(body), indent + stub))
            opened = None
        elif opened:
            body.append(line)
        else:
            out.append(line)
    if opened:
        raise _fail(path, opened[0], "BEGIN without END in the same cell")
    return out


def _fill(parts: list[str | Blank], kind: Kind) -> str:
    lines: list[str] = []
    for part in parts:
        if isinstance(part, str):
            lines.append(part)
        elif kind == "solution":
            lines.extend(part.solution)
        else:
            lines.append(part.stub)
    return "\n".join(lines)


class Cell(NamedTuple):
    """One cell of a source: kind is "code" or "markdown"; first_line: of its text in the file."""

    name: str
    kind: str
    metadata: dict[str, Any]
    lines: tuple[str, ...]
    first_line: int


@dataclass(frozen=True)
class Source:
    """A parsed source file and its cells."""

    name: str
    path: str
    cells: tuple[Cell, ...]

    def parts(self, cell: Cell) -> list[str | Blank]:
        """Plain lines and blanks of a cell."""
        return split_blanks(list(cell.lines), self.path, cell.first_line, cell.name)

    def blanks(self) -> list[Blank]:
        """Every blank of the lab, in order."""
        every = (part for cell in self.cells for part in self.parts(cell))
        return [part for part in every if isinstance(part, Blank)]

    def covers(self) -> list[str]:
        """Curriculum ids named by the cells' metadata."""
        return sorted({c for cell in self.cells for c in cell.metadata.get("covers", [])})

    def notebook(self, kind: Kind) -> dict[str, Any]:
        """The notebook as JSON data, without outputs and with ids made of the names."""
        cells = []
        for cell in self.cells:
            tags = [str(tag) for tag in cell.metadata.get("tags", [])]
            wanted = [ONLY[tag] for tag in tags if tag in ONLY]
            if wanted and kind not in wanted:
                continue
            parts = self.parts(cell)
            blank = any(isinstance(part, Blank) for part in parts)
            if blank and cell.kind != "code":
                raise _fail(self.path, cell.first_line, "a solution block belongs in a code cell")
            cells.append(_built(self.name, cell, _fill(parts, kind)))
        metadata = {"kernelspec": KERNELSPEC, "language_info": {"name": "python"}}
        return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _built(lab: str, cell: Cell, text: str) -> dict[str, Any]:
    """A cell as it stands in a notebook, with `text` in place of its own."""
    kept = {key: cell.metadata[key] for key in ("covers", "tags") if cell.metadata.get(key)}
    if cell.kind == "markdown":
        text = PICTURE.sub(_picture, text)
    built: dict[str, Any] = {
        "cell_type": cell.kind,
        "id": hashlib.sha256(f"{lab}/{cell.name}".encode()).hexdigest()[:12],
        "metadata": kept,
        "source": text.splitlines(keepends=True),
    }
    if cell.kind == "code":
        built |= {"execution_count": None, "outputs": []}
    return built


def _picture(fence: re.Match[str]) -> str:
    """A drawing made of characters: on a narrow page it scrolls, where a fence would wrap."""
    return f'<pre style="white-space:pre;overflow-x:auto">\n{escape(fence[1], quote=False)}</pre>'


def parse(text: str, path: str) -> Source:
    """Parse a py:percent source. Every cell needs a unique `name="..."`."""
    import jupytext

    notebook = jupytext.reads(text, fmt="py:percent")
    cells, seen, source_lines, cursor = [], set(), text.splitlines(), 0
    for cell in notebook.cells:
        cursor = next(
            (i + 1 for i in range(cursor, len(source_lines)) if source_lines[i].startswith("# %%")),
            cursor,
        )
        meta = dict(cell.metadata)
        name = meta.get("name")
        if not name or name in seen:
            state = f"name {name!r} twice" if name else "cell without a name"
            raise _fail(path, cursor, f'{state}: write `# %% name="short_and_unique"`')
        seen.add(name)
        lines = tuple(cell.source.split("\n"))
        cells.append(Cell(str(name), str(cell.cell_type), meta, lines, cursor + 1))
    return Source(Path(path).stem, path, tuple(cells))


def parse_file(path: Path) -> Source:
    """The same from a file; SourceError where it cannot be built."""
    return parse(path.read_text(encoding="utf-8"), str(path))


def to_bytes(notebook: dict[str, Any]) -> bytes:
    """The one byte form of a notebook: sorted keys, indent 1, utf-8, final newline."""
    text = json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False)
    return (text + "\n").encode("utf-8")


def build(path: Path) -> tuple[bytes, bytes]:
    """The lab and the solution of a source file, as bytes."""
    return build_source(parse_file(path))


def build_source(source: Source) -> tuple[bytes, bytes]:
    """The lab and the solution of a parsed source, as bytes."""
    return to_bytes(source.notebook("lab")), to_bytes(source.notebook("solution"))


def build_all(root: Path) -> list[Path]:
    """Build every source below `root/labs/source`; returns the files that changed."""
    changed = []
    for path in sorted((root / "labs" / "source").glob("[0-9]*.py")):
        targets = (root / "labs" / f"{path.stem}.ipynb", root / "solutions" / f"{path.stem}.ipynb")
        for target, data in zip(targets, build(path), strict=True):
            if not target.exists() or target.read_bytes() != data:
                target.write_bytes(data)
                changed.append(target)
    return changed

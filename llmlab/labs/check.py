"""Is the lab series whole? Build in sync, no answer leaked, nothing missing, links alive.

`check_labs(root)` returns plain data; every list but `labs` is empty when all is well.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from llmlab.check.audit import curriculum
from llmlab.labs.build import KERNELSPEC, Source, SourceError, build_source, parse_file

SIZE_LIMIT = 300_000
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)")
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)#\s]+)[^)]*\)")
HEADING = re.compile(r"^(#+) ", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"(?<![\w.])\d[\d_]*(?:\.\d+)?(?![\w.]*\d)")
MAGIC = re.compile(r"^\s*(%|!|\?)", re.MULTILINE)


def _text(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def leaked_lines(source: Source, lab: dict[str, Any]) -> list[str]:
    """Solution lines that stand in the built lab although no stub of the source repeats them."""
    shown = {line.strip() for cell in lab["cells"] for line in _text(cell).splitlines()}
    leaks = []
    for blank in source.blanks():
        for line in blank.solution:
            text = line.strip()
            # A bare bracket or keyword is no answer.
            if len(text) >= 4 and text in shown and text != blank.stub.strip():
                leaks.append(f"{source.name}: {blank.cell}: {text}")
    return leaks


def leaked_values(source: Source, lab: dict[str, Any]) -> list[str]:
    """Numbers of three digits and more that only a solution should hold."""
    given = {number for cell in lab["cells"] for number in NUMBER.findall(_text(cell))}
    leaks = []
    for blank in source.blanks():
        for number in NUMBER.findall("\n".join(blank.solution)):
            if len(number.replace(".", "").replace("_", "")) >= 3 and number in given:
                leaks.append(f"{source.name}: {blank.cell}: value {number}")
    return leaks


def notebook_faults(path: Path, root: Path) -> list[str]:
    """What a reader or a tool would stumble over in one built notebook."""
    data = path.read_bytes()
    notebook = json.loads(data)
    faults = []
    if len(data) > SIZE_LIMIT:
        faults.append(f"{path.name}: {len(data)} bytes, limit {SIZE_LIMIT}")
    if notebook["metadata"].get("kernelspec") != KERNELSPEC or "widgets" in notebook["metadata"]:
        faults.append(f"{path.name}: metadata must hold the fixed kernelspec and no widget state")
    faults += _cell_faults(path, notebook, root)
    levels = [len(h) for cell in notebook["cells"] for h in _headings(cell)]
    if levels[:1] != [1] or levels.count(1) != 1:
        faults.append(f"{path.name}: exactly one top heading, and it comes first")
    jumps = [b for a, b in itertools.pairwise(levels) if b > a + 1]
    if jumps:
        faults.append(f"{path.name}: a heading skips a level")
    return faults


def frame_faults(source: Source) -> list[str]:
    """What every lab opens and ends with: a question first, a wrap-up, interview questions."""
    prose = ["\n".join(cell.lines) for cell in source.cells if cell.kind == "markdown"]
    opening, ending = (prose[0], prose[-1]) if prose else ("", "")
    wanted = {
        "its first cell asks a question: **Answer this first**": "answer this first"
        in opening.lower(),
        "its last cell is the wrap-up: ## Wrap-up": "## Wrap-up" in ending,
        "its wrap-up comes back to it: the short and the full answer": bool(
            source.name.startswith("00") or re.search("short answer", ending)
        ),
        "it names the interview questions it prepares": "nterview" in opening + ending,
    }
    return [f"{source.name}: a lab's frame: {what}" for what, held in wanted.items() if not held]


def _headings(cell: dict[str, Any]) -> list[str]:
    if cell["cell_type"] != "markdown":
        return []
    return HEADING.findall(FENCE.sub("", _text(cell)))


def _cell_faults(path: Path, notebook: dict[str, Any], root: Path) -> Iterable[str]:
    for cell in notebook["cells"]:
        text = _text(cell)
        if cell["cell_type"] == "code":
            if cell["outputs"] or cell["execution_count"] is not None:
                yield f"{path.name}: committed output in cell {cell['id']}"
            if MAGIC.search(text):
                yield f"{path.name}: magic or shell line in cell {cell['id']}"
            continue
        for alt, target in IMAGE.findall(text):
            if not alt.strip():
                yield f"{path.name}: image {target} without alt text"
        targets = [target for _, target in IMAGE.findall(text)] + LINK.findall(text)
        for target in targets:
            if "://" not in target and not (root / "labs" / target).exists():
                yield f"{path.name}: dead link {target}"


def check_labs(root: Path) -> dict[str, Any]:
    """Everything `llmlab labs --check` says: keys labs, uncovered, leaks, out_of_sync, faults."""
    result: dict[str, Any] = {"labs": [], "uncovered": [], "leaks": [], "out_of_sync": []}
    faults: list[str] = []
    covered: set[str] = set()
    sources = sorted((root / "labs" / "source").glob("[0-9]*.py"))
    for path in sources:
        try:
            source = parse_file(path)
            built = build_source(source)
        except SourceError as error:
            faults.append(str(error))
            continue
        result["labs"].append(path.stem)
        covered.update(source.covers())
        for folder, data in zip(("labs", "solutions"), built, strict=True):
            target = root / folder / f"{path.stem}.ipynb"
            if not target.exists() or target.read_bytes() != data:
                result["out_of_sync"].append(f"{folder}/{target.name}")
            else:
                faults += notebook_faults(target, root)
        faults += frame_faults(source)
        lab = source.notebook("lab")
        result["leaks"] += leaked_lines(source, lab) + leaked_values(source, lab)
    names = {path.stem for path in sources}
    for folder in ("labs", "solutions"):
        for stray in sorted((root / folder).glob("*.ipynb")):
            if stray.stem not in names:
                result["out_of_sync"].append(f"{folder}/{stray.name} has no source")
    covered |= items_cover()
    result["uncovered"] = [name for name in curriculum() if name not in covered]
    result["faults"] = faults
    return result


def items_cover() -> set[str]:
    """Curriculum ids that the worksheets and questions cover."""
    from llmlab.check.library import items, questions

    every = [*items().values(), *questions().values()]
    return {covered for entry in every for covered in entry.covers}

"""Answers in a notebook, read as data: nothing in it is run.

A call `check("B11.ttft", 400)` is found in the syntax tree. Its answer must be a literal, simple
arithmetic on literals, or a name that an earlier cell gave such a value. Order of cells counts,
so duplicated, deleted and renamed cells do no harm: the last answer to an item stands.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from llmlab.check import formula
from llmlab.check.handin import HandInError

MAX_CELLS = 2000
MAX_SOURCE = 100_000
_ABSENT = object()


@dataclass
class NotebookAnswers:
    """Answers by item id, and the items whose answer is computed and cannot be read."""

    student: str = ""
    answers: dict[str, Any] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)


def from_notebook(data: Any) -> NotebookAnswers:
    """The answers of a notebook's JSON; HandInError when it is none."""
    if not isinstance(data, dict) or not isinstance(data.get("cells"), list):
        raise HandInError("not a notebook (field cells)")
    if len(data["cells"]) > MAX_CELLS:
        raise HandInError(f"{len(data['cells']):,} cells; at most {MAX_CELLS:,}")
    found = NotebookAnswers(student=_student(data.get("metadata")))
    names: dict[str, Any] = {}
    for cell in data["cells"]:
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            for statement in _statements(cell.get("source")):
                _read(statement, names, found)
    return found


def _student(metadata: Any) -> str:
    lab = metadata.get("llmlab") if isinstance(metadata, dict) else None
    name = lab.get("student") if isinstance(lab, dict) else None
    return name[:120] if isinstance(name, str) else ""


def _statements(source: Any) -> list[ast.stmt]:
    text = "".join(s for s in source if isinstance(s, str)) if isinstance(source, list) else source
    if not isinstance(text, str) or len(text) > MAX_SOURCE:
        return []
    lines = ("" if line.lstrip().startswith(("%", "!")) else line for line in text.split("\n"))
    try:
        return ast.parse("\n".join(lines)).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _read(statement: ast.stmt, names: dict[str, Any], found: NotebookAnswers) -> None:
    _assign(statement, names)
    for node in ast.walk(statement):
        match node:
            case ast.Call(
                func=ast.Name(id="check") | ast.Attribute(attr="check"),
                args=[ast.Constant(value=str(item)), *rest],
            ):
                rest += [word.value for word in node.keywords if word.arg == "answer"]
                if rest:
                    _keep(item, _value(rest[0], names), found)


def _assign(statement: ast.stmt, names: dict[str, Any]) -> None:
    """Note what a statement gives to names; one that it gives anything else to is not known."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return  # it has names of its own
    value, targets = _ABSENT, set[ast.AST]()
    if isinstance(statement, ast.Assign):
        value, targets = _value(statement.value, names), set(statement.targets)
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        value, targets = _value(statement.value, names), {statement.target}
    loops = (part.target for part in ast.walk(statement) if isinstance(part, ast.comprehension))
    inner = {node for target in loops for node in ast.walk(target)}
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and node not in inner:
            names[node.id] = value if node in targets else _ABSENT


def _keep(item: str, value: Any, found: NotebookAnswers) -> None:
    if item in found.unreadable:
        found.unreadable.remove(item)
    if value is _ABSENT:
        found.answers.pop(item, None)
        found.unreadable.append(item)
    elif value is not ...:
        found.answers[item] = value


def _value(node: ast.expr, names: dict[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        return names.get(node.id, _ABSENT)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        pass
    numbers = {k: v for k, v in names.items() if type(v) in (int, float)}
    try:
        value = formula.evaluate(ast.unparse(node), numbers)
    except (ValueError, RecursionError, OverflowError):
        return _ABSENT
    return float(value)

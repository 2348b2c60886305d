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
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        if isinstance(target, ast.Name):
            names[target.id] = _value(statement.value, names)
    for node in ast.walk(statement):
        if not isinstance(node, ast.Call) or len(node.args) < 2:
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else None
        called = node.func.id if isinstance(node.func, ast.Name) else called
        name = node.args[0]
        if called == "check" and isinstance(name, ast.Constant) and isinstance(name.value, str):
            _keep(name.value, _value(node.args[1], names), found)


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

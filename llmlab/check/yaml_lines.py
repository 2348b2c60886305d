"""YAML read as plain data together with the line of every field.

`yaml.SafeLoader` only. Aliases are refused (a few of them can stand for gigabytes), and so is
a key that is given twice (the second would silently win).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MAX_BYTES = 1_000_000
MAX_DEPTH = 20
_PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
Place = tuple[str | int, ...]  # of a field: keys and indices from the top of the file
Lines = dict[Place, int]


class ContentError(ValueError):
    """A worksheet or question file that cannot be used: file, line and field are in the text."""


def read(path: Path) -> tuple[Any, Lines]:
    """The file's data and the line number (from 1) of every path in it."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ContentError(f"{path}: larger than {MAX_BYTES:,} bytes")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ContentError(f"{path}: cannot be read as UTF-8 text: {error}") from None
    try:
        return _with_lines(_Loader(text), path)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ContentError(f"{where}: not YAML: {error.problem}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        if isinstance(error, ContentError):
            raise
        raise ContentError(f"{path}: not YAML: {type(error).__name__}") from None


def _with_lines(loader: Any, path: Path) -> tuple[Any, Lines]:
    try:
        node = loader.get_single_node()
        lines: Lines = {(): 1}
        return None if node is None else _plain(loader, node, (), lines, set(), path), lines
    finally:
        loader.dispose()


def _plain(loader: Any, node: Any, at: Place, lines: Lines, seen: set[int], path: Path) -> Any:
    line = node.start_mark.line + 1
    lines[at] = line
    if id(node) in seen:
        raise ContentError(f"{path}:{line}: aliases (*name) are not allowed here")
    if len(at) > MAX_DEPTH:
        raise ContentError(f"{path}:{line}: nested deeper than {MAX_DEPTH}")
    seen.add(id(node))
    if not _is_scalar(node) and node.tag not in _PLAIN_TAGS:
        raise ContentError(f"{path}:{line}: the tag {node.tag} is not allowed here")
    if isinstance(node, yaml.SequenceNode):
        return [
            _plain(loader, child, (*at, i), lines, seen, path) for i, child in enumerate(node.value)
        ]
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Any] = {}
        for key_node, child in node.value:
            key = str(loader.construct_object(key_node)) if _is_scalar(key_node) else None
            if key is None or key in found:
                problem = "a key must be a word" if key is None else f"{key!r} is given twice"
                raise ContentError(f"{path}:{key_node.start_mark.line + 1}: {problem}")
            found[key] = _plain(loader, child, (*at, key), lines, seen, path)
        return found
    return loader.construct_object(node)


def _is_scalar(node: Any) -> bool:
    return isinstance(node, yaml.ScalarNode)

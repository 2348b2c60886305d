"""The library: all worksheets and items, read once, found by id.

Files come from `data/worksheets` and from the instructor's folder `LLMLAB_ITEMS` (its
`worksheets/` where there is one, else the folder itself).
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from llmlab.check.item import Draws, Model, Problem
from llmlab.check.question import NumericQuestion, Question, QuestionFile, TraceQuestion
from llmlab.check.worksheet import Item, Shared, Worksheet, WorksheetSpec, first_values, trouble
from llmlab.check.yaml_lines import ContentError, Lines, Place, read
from llmlab.data import data_path

M = TypeVar("M", bound=Model)
T = TypeVar("T")


def folders(kind: str) -> tuple[Path, ...]:
    """Folders that hold files of a kind ("worksheets" or "questions"), ours first."""
    found = [data_path(kind)]
    own = os.environ.get("LLMLAB_ITEMS")
    if own:
        if not Path(own).is_dir():
            raise ContentError(f"LLMLAB_ITEMS: there is no folder {own}")
        inside = Path(own) / kind
        has_kinds = any((Path(own) / k).is_dir() for k in ("worksheets", "questions"))
        if inside.is_dir():
            found.append(inside)
        elif not has_kinds:
            found.append(Path(own))
    return tuple(found)


def where(path: Path, lines: Lines, at: Place) -> str:
    """`file:line: field` of a path in the data, or of the nearest one above it."""
    known = at
    while known and known not in lines:
        known = known[:-1]
    field = ".".join(str(part) for part in at) or "file"
    return f"{path}:{lines.get(known, 1)}: {field}"


def validated(model: type[M], data: Any, lines: Lines, path: Path) -> M:
    """`data` as a model; ContentError lists every problem with file, line and field."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = [(tuple(e["loc"]), _plain(e)) for e in error.errors()]
    raise _refusal(path, lines, problems)


def _refusal(path: Path, lines: Lines, problems: Iterable[Problem]) -> ContentError:
    return ContentError("\n".join(f"{where(path, lines, at)}: {text}" for at, text in problems))


def _plain(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return "this field is not known here"
    if error["type"] == "missing":
        return "this field is missing"
    return str(error["msg"]).removeprefix("Value error, ")


def read_worksheet(path: Path) -> Worksheet:
    """One worksheet file, checked; ContentError names file, line and field."""
    data, lines = read(path)
    spec = validated(WorksheetSpec, data, lines, path)
    shared = Draws(parameters=spec.parameters, together=spec.together, require=spec.require)
    problems = spec.problems()
    if not problems:
        for i, item in enumerate(spec.items):
            first = {**first_values(spec), **first_values(item)}
            reason = trouble(item, first)
            if reason:
                problems.append((("items", i), f"with the first numbers: {reason}"))
    if problems:
        raise _refusal(path, lines, problems)
    kin = tuple(item for item in spec.items if not item.names())
    together = Shared(path.stem, shared, kin)
    items = tuple(Item(item, together) for item in spec.items)
    return Worksheet(path.stem, spec, items)


@lru_cache(maxsize=8)
def _worksheets(where_from: tuple[Path, ...]) -> dict[str, Worksheet]:
    found: dict[str, Worksheet] = {}
    owners: dict[str, Path] = {}
    for folder in where_from:
        for path in sorted(folder.glob("*.yaml")):
            if folder != where_from[0] and is_question_file(path):
                continue
            sheet = read_worksheet(path)
            if sheet.name in found:
                raise ContentError(f"{path}: a worksheet {sheet.name!r} exists already")
            for item in sheet.items:
                if item.id in owners:
                    raise ContentError(f"{path}: item {item.id} is in {owners[item.id]} already")
                owners[item.id] = path
            found[sheet.name] = sheet
    return found


def is_question_file(path: Path) -> bool:
    """Whether a file of an instructor's folder holds questions rather than a worksheet."""
    data, _ = read(path)
    return isinstance(data, dict) and "questions" in data


def read_questions(path: Path) -> list[Question]:
    """One file of questions, checked; ContentError names file, line and field."""
    data, lines = read(path)
    spec = validated(QuestionFile, data, lines, path)
    problems: list[Problem] = []
    for i, question in enumerate(spec.questions):
        if isinstance(question, NumericQuestion):
            found = question.problems(question.names())
            if not found:
                reason = trouble(question, first_values(question))
                found = [((), f"with the first numbers: {reason}")] if reason else []
            problems += [(("questions", i, *at), text) for at, text in found]
        if isinstance(question, TraceQuestion) and not (path.parent / question.trace).is_file():
            problems.append((("questions", i, "trace"), f"no file {question.trace}"))
    if problems:
        raise _refusal(path, lines, problems)
    return [q if q.topic else q.model_copy(update={"topic": spec.topic}) for q in spec.questions]


@lru_cache(maxsize=8)
def _questions(where_from: tuple[Path, ...]) -> dict[str, Question]:
    found: dict[str, Question] = {}
    for folder in where_from:
        for path in sorted(folder.glob("*.yaml")):
            if folder != where_from[0] and not is_question_file(path):
                continue
            for question in read_questions(path):
                if question.id in found:
                    raise ContentError(f"{path}: question {question.id} exists already")
                found[question.id] = question
    for question in found.values():
        for other in question.followups:
            if other not in found:
                raise ContentError(
                    f"question {question.id}: followups: no question {other!r}; "
                    f"{near(other, list(found))}"
                )
    return found


def questions() -> dict[str, Question]:
    """Every question by id; ContentError where a file cannot be used."""
    return _questions(folders("questions"))


def find_question(question_id: str) -> Question:
    """A question by id; ValueError lists near ids."""
    return by_name("question", question_id, questions())


def worksheets() -> dict[str, Worksheet]:
    """Every worksheet by name; ContentError where a file cannot be used."""
    return _worksheets(folders("worksheets"))


def items() -> dict[str, Item]:
    """Every worksheet item by id."""
    return {item.id: item for sheet in worksheets().values() for item in sheet.items}


def by_name(what: str, name: str, every: Mapping[str, T]) -> T:
    """What has this name; ValueError lists near names."""
    if name not in every:
        raise ValueError(f"no {what} {str(name)[:80]!r}; {near(str(name), list(every))}")
    return every[name]


def near(word: str, known: list[str]) -> str:
    """Text that lists names like `word`."""
    folded = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), list(folded), n=3, cutoff=0.5)
    if close:
        return "did you mean " + ", ".join(folded[name] for name in close) + "?"
    return "known: " + ", ".join(sorted(known)[:8]) + (", ..." if len(known) > 8 else "")


def load_worksheet(name: str) -> Worksheet:
    """A worksheet by name ("b11"); ValueError lists near names."""
    return by_name("worksheet", name, worksheets())


def find_item(item_id: str) -> Item:
    """An item by id ("B11.ttft"); ValueError lists near ids."""
    return by_name("item", item_id, items())

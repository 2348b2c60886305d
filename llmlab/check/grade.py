"""Grading a folder of hand-ins: every score again from the raw answers, nothing executed.

Each file gives one row, with the reason where it could not be graded. Points of three kinds stay
apart: auto (worked out here), self (the learner's own rubric scores) and instructor (overrides).
The total is auto, with an instructor's points in place of it where there are any.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from llmlab.check import library
from llmlab.check.choose import judge_question
from llmlab.check.compare import flag_prose, flag_same_answers, mark_counted
from llmlab.check.handin import HandIn, HandInError, parse, read_json
from llmlab.check.judge import judge
from llmlab.check.notebook_answers import from_notebook
from llmlab.check.prose import digest
from llmlab.check.question import ProseQuestion, Question
from llmlab.check.result import Result
from llmlab.check.roster import Enrolled
from llmlab.check.store import Event
from llmlab.check.student import PRACTICE_KEY, Student
from llmlab.check.worksheet import Item

MAX_ATTEMPTS = 200  # of one item in one hand-in
IGNORED = {".DS_Store", "Thumbs.db", "desktop.ini"}


@dataclass
class Row:
    """One file of the folder."""

    file: str
    reason: str = ""  # why it could not be graded; "" = graded
    id: str = ""
    name: str = ""
    created: str = ""
    counted: bool = False
    scores: dict[str, float] = field(default_factory=dict)  # item -> share of its points
    attempts: dict[str, int] = field(default_factory=dict)
    self_scores: dict[str, float] = field(default_factory=dict)  # prose question -> share
    code: dict[str, bool] = field(default_factory=dict)  # advisory: from the student's kernel
    flags: list[str] = field(default_factory=list)
    wrong: list[tuple[str, Any]] = field(default_factory=list)  # for comparing with others
    prose: dict[str, str] = field(default_factory=dict)  # digest -> question

    @property
    def graded(self) -> bool:
        """Whether the file could be read as a hand-in of a student of this class."""
        return not self.reason

    def to_json(self) -> dict[str, Any]:
        """As plain data: from_json gives an equal row, but for answers that no file can hold.

        Such answers (a set or a complex number in a notebook) are numbers to nobody; [] is left.
        """
        return {**asdict(self), "wrong": [[name, _plain(answer)] for name, answer in self.wrong]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Row:
        """The row of `to_json`."""
        return cls(**{**data, "wrong": [(name, answer) for name, answer in data["wrong"]]})


def _plain(answer: Any) -> Any:
    if type(answer) is float:
        return answer if math.isfinite(answer) else []
    if type(answer) is int:
        return answer if answer.bit_length() < 10_000 else []
    return answer if answer is None or type(answer) in (bool, str) else []


class Grader:
    """Grades files of one class. `key` draws the numbers; only=names of worksheets, or all."""

    def __init__(
        self, roster: list[Enrolled], key: bytes = PRACTICE_KEY, only: Sequence[str] = ()
    ) -> None:
        self.roster = {student.id: student for student in roster}
        self._by_name: dict[str, list[str]] = {}
        for student in roster:
            self._by_name.setdefault(student.name.casefold(), []).append(student.id)
        self.students = {one: Student(one, key) for one in self.roster}
        chosen = [library.load_worksheet(name) for name in only] or library.worksheets().values()
        self.items: dict[str, Item] = {i.id: i for sheet in chosen for i in sheet.items}
        self.questions: dict[str, Question] = {} if only else library.questions()

    def points_of(self, name: str) -> float:
        """Points of an item or a question."""
        found = self.items.get(name)
        return float(found.spec.points if found else self.questions[name].points)

    def grade_file(self, path: Path, shown: str) -> Row:
        """One file's row; raises nothing."""
        row = Row(shown)
        try:
            self._grade(path, row)
        except HandInError as error:
            row.reason = str(error)
        except Exception as error:  # one file must never stop the class
            row.reason = f"could not be graded ({type(error).__name__})"
        return row

    def _grade(self, path: Path, row: Row) -> None:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            raise HandInError("a link; links are not followed")
        if not stat.S_ISREG(mode):
            raise HandInError("not a plain file")
        suffix = path.suffix.lower()
        if suffix not in (".json", ".ipynb"):
            raise HandInError("not a hand-in (expected .json or .ipynb)")
        data = read_json(path)
        if suffix == ".ipynb":
            self._grade_notebook(data, row, path.stem)
        else:
            self._grade_handin(parse(data), row)

    def _enrolled(self, *words: str) -> str:
        for word in words:
            if word in self.roster:
                return word
            same = self._by_name.get(word.casefold(), [])
            if len(same) == 1:
                return same[0]
            if len(same) > 1:
                raise HandInError(f"{word[:60]!r} are {len(same)} students in the roster")
        raise HandInError(f"student {words[0][:60]!r} is not in the roster")

    def _grade_handin(self, handin: HandIn, row: Row) -> None:
        row.id = self._enrolled(handin.student)
        row.name = self.roster[row.id].name
        row.created = handin.created
        student = self.students[row.id]
        if handin.fingerprint != student.fingerprint:
            whose = "the curriculum's own" if handin.fingerprint.startswith("-") else "other"
            row.flags.append(
                f"worked with {whose} numbers ({handin.fingerprint}, not {student.fingerprint})"
            )
        names = {e.student for e in handin.events} - {handin.student, ""}
        if names:
            row.flags.append(f"attempts under other names: {', '.join(sorted(names)[:3])}")
        texts: dict[str, str] = {}
        for event in handin.events:
            if event.kind == "attempt":
                self._attempt(event.item, event.data.get("answer"), student, row, event)
            elif event.kind == "prose":
                self._prose(event, texts, row)
            elif event.kind == "self":
                self._self_score(event, texts, row)
            elif event.kind == "code":
                row.code[event.item[:80]] = event.data.get("passed") is True

    def _grade_notebook(self, data: Any, row: Row, stem: str) -> None:
        found = from_notebook(data)
        row.id = self._enrolled(*([found.student] if found.student else []), stem)
        row.name = self.roster[row.id].name
        for item, answer in found.answers.items():
            self._attempt(item, answer, self.students[row.id], row, None)
        if found.unreadable:
            names = ", ".join(sorted(found.unreadable)[:5])
            row.flags.append(f"answers computed in the notebook, not read: {names}")

    def _judge(self, name: str, answer: Any, student: Student) -> Result | None:
        if name in self.items:
            return judge(self.items[name], answer, student)
        question = self.questions.get(name)
        if question is None or isinstance(question, ProseQuestion):
            return None
        return judge_question(question, answer, student)

    def _attempt(
        self, name: str, answer: Any, student: Student, row: Row, event: Event | None
    ) -> None:
        count = row.attempts.get(name, 0)
        if count >= MAX_ATTEMPTS:
            return
        result = self._judge(name, answer, student)
        if result is None or result.state == "not answered yet":
            return
        row.attempts[name] = count + 1
        row.scores[name] = max(row.scores.get(name, 0.0), result.score)
        if result.state == "incorrect" and result.misconception is None and name in self.items:
            row.wrong.append((name, answer))
        claimed = event.data.get("state") if event else result.state
        if claimed == "correct" and result.state != "correct":
            note = "recorded as correct, worked out as not"
            if not any(flag.startswith(note) for flag in row.flags):
                row.flags.append(f"{note}: {name}")

    def _prose(self, event: Event, texts: dict[str, str], row: Row) -> None:
        text = event.data.get("text")
        if event.item in self.questions and isinstance(text, str):
            mark = digest(text)
            texts[event.item] = mark
            if len(text) >= 40:
                row.prose[mark] = event.item

    def _self_score(self, event: Event, texts: dict[str, str], row: Row) -> None:
        question = self.questions.get(event.item)
        met = event.data.get("met")
        if not isinstance(question, ProseQuestion) or not isinstance(met, list):
            return
        if event.data.get("sha256") != texts.get(event.item):
            row.flags.append(f"self score without the committed text: {event.item}")
            return
        row.self_scores[event.item] = question.share(met)


@dataclass(frozen=True)
class Course:
    """What a process needs to grade a file of this class: roster, key, worksheets, own items."""

    roster: tuple[Enrolled, ...]
    key: bytes
    only: tuple[str, ...] = ()
    own_items: str | None = field(default_factory=lambda: os.environ.get("LLMLAB_ITEMS"))


@lru_cache(maxsize=1)
def grader_of(course: Course) -> Grader:
    """The grader of a course, made once in a process; ValueError where other items are found."""
    here = os.environ.get("LLMLAB_ITEMS")
    if here != course.own_items:
        raise ValueError(f"LLMLAB_ITEMS is {here} on this worker, not {course.own_items}")
    return Grader(list(course.roster), course.key, course.only)


def grade_cell(course: Course, cell: tuple[str, str]) -> dict[str, Any]:
    """The row of one file as plain data. cell: where it is, and its name in the tables."""
    path, shown = cell
    return grader_of(course).grade_file(Path(path), shown).to_json()


def files_in(folder: Path, out: Path | None = None) -> list[Path]:
    """Every file below a folder, in a fixed order; links to folders are not entered.

    Left out: what the system leaves behind, the folder that the grades are written to, and the
    HTML file that `llmlab report` writes beside its JSON.
    """
    found: list[Path] = []
    for here, folders, names in os.walk(folder, followlinks=False):
        base = Path(here)
        folders[:] = sorted(f for f in folders if out is None or (base / f).resolve() != out)
        found += [base / f for f in folders if (base / f).is_symlink()]
        for name in names:
            beside = (base / name).with_suffix(".json").name in names
            if name not in IGNORED and not (name.endswith(".html") and beside):
                found.append(base / name)
    return sorted(found)


def grade_folder(
    grader: Grader,
    folder: Path,
    out: Path | None = None,
    tick: Callable[[], None] = lambda: None,
) -> list[Row]:
    """A row for every file; then the rows are compared with one another."""
    rows = []
    for path in files_in(folder, out):
        rows.append(grader.grade_file(path, shown(path, folder)))
        tick()
    return compare(grader, rows)


def compare(grader: Grader, rows: list[Row]) -> list[Row]:
    """Compare the rows of a class with one another: which count, and what to look at."""
    mark_counted(rows)
    flag_same_answers(grader, rows)
    flag_prose(rows)
    return rows


def shown(path: Path, folder: Path) -> str:
    """A file's name below the folder, as text that can be written."""
    return str(path.relative_to(folder)).encode("utf-8", "replace").decode()

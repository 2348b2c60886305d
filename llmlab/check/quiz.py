"""A quiz: which questions, in which order, and one sitting with them. No terminal, no widgets.

Order: what is due by the spacing rule (longest due first), then what was never asked (shuffled
by the seed), then what is not due yet (soonest first). So what was missed comes back sooner.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from llmlab.check import library
from llmlab.check.checker import check, hint
from llmlab.check.choose import judge_question
from llmlab.check.prose import Commitment, commit, self_score
from llmlab.check.question import ROLES, ProseQuestion, Question
from llmlab.check.result import Result
from llmlab.check.spacing import CONFIDENCE, PASS, schedule
from llmlab.check.store import Store
from llmlab.check.student import Student

LEVELS = ("L1", "L2", "L3", "L4")
MAX_NOTE = 500


def topics(bank: Iterable[Question]) -> list[str]:
    """Every topic, in order of the alphabet."""
    return sorted({str(q.topic) for q in bank})


def matching(
    bank: Iterable[Question],
    topic: str | None = None,
    level: str | None = None,
    role: str | None = None,
) -> list[Question]:
    """Questions of a topic (or a curriculum id), level and role; ValueError lists what there is."""
    bank = list(bank)
    if level is not None and level.upper() not in LEVELS:
        raise ValueError(f"level {level!r}: must be one of {', '.join(LEVELS)}")
    if role is not None and role not in ROLES:
        raise ValueError(f"role {role!r}: must be one of {', '.join(ROLES)}")
    ids = {name for q in bank for name in q.covers}
    if topic is not None and topic not in topics(bank) and topic.upper() not in ids:
        known = ", ".join(topics(bank))
        raise ValueError(f"topic {topic!r}: must be one of {known}, or a curriculum id such as B5")
    found = [
        q
        for q in bank
        if (topic is None or q.topic == topic or topic.upper() in q.covers)
        and (level is None or q.level == level.upper())
        and (role is None or role in q.roles)
    ]
    if not found:
        raise ValueError("no question fits all of these; leave one of topic, level and role out")
    return found


def shuffle_key(seed: int, name: str) -> bytes:
    """A key whose order is decided by seed and name alone, on any version of the language."""
    return hashlib.sha256(f"{seed}|{name}".encode()).digest()


def select(
    bank: Iterable[Question],
    store: Store,
    *,
    topic: str | None = None,
    level: str | None = None,
    role: str | None = None,
    count: int = 10,
    seed: int = 0,
    now: datetime | None = None,
) -> list[Question]:
    """Up to `count` questions in the order in which they should be asked."""
    found = matching(bank, topic, level, role)
    now = now or datetime.now(UTC)
    due = schedule(store.events(), [q.id for q in found])

    def key(question: Question) -> tuple[int, float, bytes]:
        order = shuffle_key(seed, question.id)
        if question.id not in due:
            return (1, 0.0, order)
        when = due[question.id].when
        return (0 if when <= now else 2, when.timestamp(), order)

    return sorted(found, key=key)[:count]


@dataclass
class Done:
    """What became of one question of a sitting. score: of the first try."""

    id: str
    score: float
    tries: int = 1
    confidence: str = ""


@dataclass
class Sitting:
    """One quiz: questions in order, answers kept as they are given."""

    questions: list[Question]
    store: Store
    student: Student
    place: int = 0
    done: dict[str, Done] = field(default_factory=dict)

    @property
    def current(self) -> Question | None:
        """The question to ask now, None at the end."""
        return self.questions[self.place] if self.place < len(self.questions) else None

    def next(self) -> Question | None:
        """Go on to the next question."""
        self.place += 1
        return self.current

    def misread(self, question: Question, answer: Any) -> str:
        """Why an answer cannot be read, "" if it can; nothing is recorded."""
        result = judge_question(question, answer, self.student)
        return result.message if result.state == "error" else ""

    def answer(self, question: Question, answer: Any) -> Result:
        """Check and remember an answer. Prose has `commit` instead."""
        result = check(question.id, answer, store=self.store, student=self.student)
        if result.state not in ("error", "not answered yet"):
            self._count(question, result.score)
        return result

    def hint(self, question: Question) -> str:
        """The next hint; asking is remembered."""
        return hint(question.id, store=self.store, student=self.student)

    def commit(self, question: ProseQuestion, text: str) -> Commitment:
        """Keep words for good; the rubric comes with what is returned."""
        return commit(question, text, self.store, self.student)

    def score(self, commitment: Commitment, met: Collection[str]) -> float:
        """The learner's own score of committed words."""
        score = self_score(commitment, met, self.store, self.student)
        self._count(commitment.question, score)
        return score

    def feel(self, question: Question, level: str, assumes: str = "", revise: str = "") -> None:
        """How sure the learner is, what could change the answer, what would make them revise it."""
        if level not in CONFIDENCE:
            raise ValueError(f"confidence {level!r}: must be one of {', '.join(CONFIDENCE)}")
        data = {"level": level, "assumption": assumes[:MAX_NOTE], "observation": revise[:MAX_NOTE]}
        self.store.add("confidence", question.id, data, self.student)
        if question.id in self.done:
            self.done[question.id].confidence = level

    def _count(self, question: Question, score: float) -> None:
        if question.id in self.done:
            self.done[question.id].tries += 1
        else:
            self.done[question.id] = Done(question.id, score)

    @property
    def missed(self) -> list[str]:
        """Questions whose first try was not right."""
        return [d.id for d in self.done.values() if d.score < PASS]


def listing(questions: Iterable[Question], store: Store) -> list[dict[str, Any]]:
    """Questions as plain data, with what is known about each, and no answers."""
    questions = list(questions)
    due = schedule(store.events(), [q.id for q in questions])
    return [
        {
            "id": q.id,
            "kind": q.kind,
            "level": q.level,
            "topic": q.topic,
            "roles": list(q.roles),
            "covers": list(q.covers),
            "due": due[q.id].when.isoformat(timespec="seconds") if q.id in due else None,
            "missed": due[q.id].missed if q.id in due else None,
        }
        for q in questions
    ]


def whole_bank() -> list[Question]:
    """Every question there is, the instructor's own included."""
    return list(library.questions().values())

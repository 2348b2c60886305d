"""Answers in words: committed first (hashed), then the rubric is shown and the learner scores.

Self points and instructor points are kept apart from what the checker can score itself.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass

from llmlab.check.question import Criterion, ProseQuestion
from llmlab.check.store import Store
from llmlab.check.student import Student

MAX_CHARACTERS = 20_000


@dataclass(frozen=True)
class Commitment:
    """A text that cannot be changed any more: its hash is in the progress file."""

    question: ProseQuestion
    text: str
    sha256: str

    @property
    def rubric(self) -> list[Criterion]:
        """What to score by; only a commitment has it."""
        return list(self.question.rubric)


def digest(text: str) -> str:
    """Hash of a text, whatever its line ends and spacing: equal for equal prose."""
    plain = " ".join(unicodedata.normalize("NFC", text).split())
    return hashlib.sha256(plain.encode()).hexdigest()


def commit(question: ProseQuestion, text: str, store: Store, student: Student) -> Commitment:
    """Keep a text for good; ValueError for an empty or endless one."""
    if not text.strip():
        raise ValueError("there is nothing to commit yet; write your answer first")
    if len(text) > MAX_CHARACTERS:
        raise ValueError(
            f"an answer has at most {MAX_CHARACTERS:,} characters, this has {len(text):,}"
        )
    mark = digest(text)
    store.add("prose", question.id, {"text": text, "sha256": mark}, student)
    return Commitment(question, text, mark)


def self_score(
    commitment: Commitment, met: Collection[str], store: Store, student: Student
) -> float:
    """Record which criteria the learner says are met; returns the share of the rubric's points."""
    question = commitment.question
    criteria = {c.id for c in question.rubric}
    unknown = set(met) - criteria
    if unknown:
        raise ValueError(f"criteria {sorted(unknown)} do not exist; there are {sorted(criteria)}")
    score = question.share(met)
    data = {"met": sorted(set(met)), "score": score, "sha256": commitment.sha256}
    store.add("self", question.id, data, student)
    return score

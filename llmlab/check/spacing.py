"""When a question should come back: FSRS, the published spacing rule of py-fsrs (Free Spaced
Repetition Scheduler, https://github.com/open-spaced-repetition/py-fsrs), with its own defaults.

An answer is a review: missed is Again, partly right or guessed or helped by a hint is Hard,
right is Good. Nothing is stored beside the attempts: cards are replayed from them, so an
imported progress file gives the same schedule.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from llmlab.check.store import Event

RULE = "FSRS (py-fsrs)"
SITTING = timedelta(minutes=10)  # tries within it are one review, and a miss is due after it
CONFIDENCE = ("not yet", "getting there", "confident")
PASS = 0.75  # of the rubric's points: prose that counts as right
_STATES = {"correct": 1.0, "partial": 0.5, "incorrect": 0.0}


@dataclass(frozen=True)
class Due:
    """When a question is due again, and whether its last review was missed."""

    when: datetime
    missed: bool


@dataclass
class _Review:
    when: datetime
    score: float
    helped: bool
    guessed: bool = False


def schedule(events: Iterable[Event], names: Iterable[str]) -> dict[str, Due]:
    """What was answered so far, by question: when it comes back. Unanswered ones are left out."""
    wanted = set(names)
    reviews: dict[str, list[_Review]] = {}
    for event in sorted(events, key=lambda e: e.time):
        if event.item in wanted:
            _take(event, reviews.setdefault(event.item, []))
    return {name: _due(name, seen) for name, seen in reviews.items() if seen}


def _take(event: Event, seen: list[_Review]) -> None:
    when = _time(event)
    if when is None:
        return
    if event.kind == "confidence":
        if seen and when - seen[-1].when < SITTING:
            seen[-1].guessed = event.data.get("level") == CONFIDENCE[0]
        return
    score = _score(event)
    if score is None or (seen and when - seen[-1].when < SITTING):
        return  # a second try after the message of the first says little about memory
    seen.append(_Review(when, score, bool(event.data.get("hints"))))


def _score(event: Event) -> float | None:
    if event.kind == "attempt":
        return _STATES.get(str(event.data.get("state")))
    if event.kind == "self":
        score = event.data.get("score")
        if isinstance(score, (int, float)):
            return 1.0 if score >= PASS else 0.5 if score >= 0.5 else 0.0
    return None


def _time(event: Event) -> datetime | None:
    try:
        return datetime.fromisoformat(event.time).astimezone(UTC)
    except ValueError:
        return None


def _due(name: str, seen: list[_Review]) -> Due:
    from fsrs import Card, Rating, Scheduler

    # No fuzz: the same attempts give the same schedule. One learning step: a miss comes back in
    # ten minutes, a right answer after days.
    rule: Any = Scheduler(
        enable_fuzzing=False, learning_steps=(SITTING,), relearning_steps=(SITTING,)
    )
    card: Any = Card(card_id=zlib.crc32(name.encode()), due=seen[0].when)
    for review in seen:
        rating = Rating.Good if review.score == 1 else Rating.Hard
        if review.score == 1 and (review.helped or review.guessed):
            rating = Rating.Hard
        if review.score == 0:
            rating = Rating.Again
        card, _ = rule.review_card(card, rating, review.when)
    return Due(card.due, seen[-1].score == 0)

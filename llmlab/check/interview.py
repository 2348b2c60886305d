"""A timed mock interview: what is asked next, what was scored, and when it is over.

Opening question; follow-ups that climb from L1 to L4 by how the last one was scored; "what is
wrong with this answer"; orders of magnitude. No terminal here, and no clock of its own: `clock`
gives seconds and is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from llmlab.check.prose import Commitment
from llmlab.check.question import ProseQuestion, Question
from llmlab.check.quiz import LEVELS, Sitting, shuffle_key
from llmlab.check.result import Result
from llmlab.check.store import Store
from llmlab.check.student import Student

OPENING, WRONG, ESTIMATE, CLIMB = "opening", "wrong-answers", "estimates", "follow-up"
# The first turns hold one of each kind, so that a short interview has them all.
_PLAN = (OPENING, CLIMB, WRONG, ESTIMATE, CLIMB, CLIMB, CLIMB, ESTIMATE, CLIMB, CLIMB)
TITLES = {
    OPENING: "Opening question",
    CLIMB: "Follow-up",
    WRONG: "What is wrong with this answer?",
    ESTIMATE: "Order of magnitude",
}
UP, DOWN = 0.7, 0.4
MINUTES_EACH = 2.0  # the shortest time a question can be asked for; bounds how many there are
ROLES = {"inference": "inference engineering", "product": "LLM product engineering"}
_NEVER_CLIMBED = (OPENING, WRONG, ESTIMATE)


@dataclass
class Turn:
    """One question of the interview. score is None until it was scored."""

    question: Question
    part: str
    started: float
    answer: Any = None
    score: float | None = None
    self_scored: bool = False
    confidence: str = ""
    assumption: str = ""
    observation: str = ""
    met: list[str] = field(default_factory=list)
    seconds: float = 0.0
    late: bool = False


class Interview:
    """One interview. Answers are kept in the store as they are given."""

    def __init__(
        self,
        bank: Iterable[Question],
        role: str,
        minutes: float,
        *,
        store: Store,
        student: Student,
        clock: Callable[[], float],
        seed: int = 0,
    ) -> None:
        """ValueError for an unknown role or a time outside 1..180 minutes."""
        if role not in ROLES:
            raise ValueError(f"role {role!r}: must be one of {', '.join(ROLES)}")
        if not 1 <= minutes <= 180:
            raise ValueError(f"minutes = {minutes:g}: must be in 1..180")
        self.role, self.minutes, self.seed = role, minutes, seed
        self.bank = [q for q in bank if role in q.roles]
        if not any(q.topic == OPENING for q in self.bank):
            raise ValueError(f"no question of topic {OPENING!r} for {role}; see llmlab items")
        self.sitting = Sitting(list(self.bank), store, student)
        self.clock = clock
        self.start = clock()
        self.turns: list[Turn] = []
        self.level = 0  # index into LEVELS of the next follow-up

    # -- time --------------------------------------------------------------------------------

    @property
    def used_s(self) -> float:
        """Seconds since the start."""
        return self.clock() - self.start

    @property
    def left_s(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self.minutes * 60 - self.used_s)

    # -- what comes next ---------------------------------------------------------------------

    def next(self) -> Turn | None:
        """The next turn, None when the time or the questions are used up."""
        most = max(4, int(self.minutes / MINUTES_EACH))
        if self.left_s <= 0 or len(self.turns) >= most:
            return None
        part = _PLAN[len(self.turns)] if len(self.turns) < len(_PLAN) else CLIMB
        question = self._pick(part)
        if question is None:  # no more of this kind: climb on, or end
            part = CLIMB
            question = self._pick(part)
        if question is None:
            return None
        turn = Turn(question, part, self.clock())
        self.turns.append(turn)
        return turn

    def _pick(self, part: str) -> Question | None:
        asked = {t.question.id for t in self.turns}
        left = [q for q in self.bank if q.id not in asked]
        if part != CLIMB:
            left = [q for q in left if q.topic == part]
            return min(left, key=lambda q: (self._far(q), self._shuffled(q)), default=None)
        left = [q for q in left if q.topic not in _NEVER_CLIMBED and q.kind != "order"]
        return min(left, key=self._climb_key, default=None)

    def _climb_key(self, question: Question) -> tuple[Any, ...]:
        """Nearest level first; then what the last questions lead to; then words before choices."""
        led = {name for t in self.turns for name in t.question.followups}
        return (
            self._far(question),
            question.id not in led,
            not isinstance(question, ProseQuestion),
            len(question.roles) > 1,
            self._shuffled(question),
        )

    def _far(self, question: Question) -> int:
        return abs(LEVELS.index(question.level) - self.level)

    def _shuffled(self, question: Question) -> bytes:
        return shuffle_key(self.seed, question.id)

    # -- answers -----------------------------------------------------------------------------

    def answer(self, turn: Turn, answer: Any) -> Result:
        """Judge an answer that is not prose; one that cannot be read may be given again."""
        result = self.sitting.answer(turn.question, answer)
        if result.state not in ("error", "not answered yet"):
            turn.answer = answer
            self._scored(turn, result.score)
        return result

    def commit(self, turn: Turn, text: str) -> Commitment:
        """Keep words for good, before the rubric is shown."""
        if not isinstance(turn.question, ProseQuestion):
            raise ValueError(f"question {turn.question.id} is not answered in words")
        commitment = self.sitting.commit(turn.question, text)
        turn.answer = text
        turn.seconds = self.clock() - turn.started
        return commitment

    def score(self, turn: Turn, commitment: Commitment, met: Collection[str]) -> float:
        """The learner's own score of committed words."""
        score = self.sitting.score(commitment, met)
        turn.self_scored, turn.met = True, sorted(set(met))
        self._scored(turn, score)
        return score

    def skip(self, turn: Turn) -> None:
        """No answer: counts as none right, and the next follow-up is easier."""
        self._scored(turn, 0.0)

    def feel(self, turn: Turn, level: str, assumes: str = "", revise: str = "") -> None:
        """How sure the learner is, asked before the result is shown."""
        self.sitting.feel(turn.question, level, assumes, revise)
        turn.confidence, turn.assumption, turn.observation = level, assumes, revise

    def _scored(self, turn: Turn, score: float) -> None:
        turn.score = score
        turn.seconds = turn.seconds or self.clock() - turn.started
        turn.late = self.used_s > self.minutes * 60
        if turn.part == OPENING:
            self.level = 0 if score < UP else 1
        elif turn.part == CLIMB:
            step = 1 if score >= UP else -1 if score <= DOWN else 0
            self.level = min(max(self.level + step, 0), len(LEVELS) - 1)

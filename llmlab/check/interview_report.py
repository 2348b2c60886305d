"""The report of a mock interview: strengths, gaps with the lab to redo, calibration. One page."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from llmlab.check import library
from llmlab.check.audit import curriculum
from llmlab.check.interview import ROLES, TITLES, Interview, Turn
from llmlab.check.page import render
from llmlab.check.present import ask, said
from llmlab.check.question import ProseQuestion
from llmlab.check.quiz import LEVELS
from llmlab.check.spacing import CONFIDENCE
from llmlab.check.student import Student
from llmlab.data import labs_path

STRONG = 0.75
MIN_JUDGED = 3  # answers, below which calibration is no more than a hint


@dataclass(frozen=True)
class Calibration:
    """One level of confidence: how many answers, and their mean score."""

    level: str
    n: int
    score: float | None


# Ids about how one is asked, not about a subject: a gap is named after what else it covers.
_MANNER = {"A7", "A8", "A9", "B13", "B14", "B15", "B16"}


def answered(interview: Interview) -> list[Turn]:
    """The turns that were answered or skipped; words that were not scored yet included."""
    return [t for t in interview.turns if t.score is not None or t.answer is not None]


def calibration(turns: list[Turn]) -> list[Calibration]:
    """Mean score at each level of confidence."""
    rows = []
    for level in CONFIDENCE:
        scores = [t.score for t in turns if t.confidence == level and t.score is not None]
        rows.append(Calibration(level, len(scores), sum(scores) / len(scores) if scores else None))
    return rows


def verdict(rows: list[Calibration]) -> str:
    """One sentence on how confidence and scores agree."""
    known = {r.level: r for r in rows if r.score is not None}
    judged = sum(r.n for r in rows)
    if judged < MIN_JUDGED:
        return "Too few answers with a confidence to say anything about it."
    sure, unsure = known.get("confident"), known.get("not yet")
    if sure and sure.score is not None and sure.score < STRONG:
        return (
            "Where you were confident you were often not right: look for what could disprove you."
        )
    if unsure and unsure.score is not None and unsure.score >= STRONG:
        return "You know more than you trust: where you said not yet you were mostly right."
    ordered = [r.score for r in rows if r.score is not None]
    if len(ordered) > 1 and ordered == sorted(ordered):
        return "Your confidence and your scores agree."
    return "Your confidence says little about your scores yet; keep writing both down."


@lru_cache(maxsize=1)
def _labs() -> dict[str, list[str]]:
    """Curriculum id -> labs that teach it, from the notebooks' own cells (read as data)."""
    found: dict[str, list[str]] = {}
    for path in sorted(Path(labs_path()).glob("*.ipynb")):
        try:
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            names = {c for cell in cells for c in cell.get("metadata", {}).get("covers", [])}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        for name in names:
            found.setdefault(str(name), []).append(path.stem)
    return found


def redo(covers: list[str]) -> str:
    """What to do again for some curriculum ids: the labs that teach them, else the worksheets."""
    labs = sorted({lab for name in covers for lab in _labs().get(name, [])})
    if labs:
        return ("lab " if len(labs) == 1 else "labs ") + ", ".join(labs)
    sheets = sorted(
        {
            sheet.name
            for sheet in library.worksheets().values()
            if any(set(item.covers) & set(covers) for item in sheet.items)
        }
    )
    if sheets:
        return ("worksheet " if len(sheets) == 1 else "worksheets ") + ", ".join(sheets)
    return f"llmlab quiz --topic {covers[0]}"


def report_data(interview: Interview, when: datetime) -> dict[str, Any]:
    """Everything the page shows, as plain data."""
    turns, who = answered(interview), interview.sitting.student
    scored = [(t, t.score) for t in turns if t.score is not None]
    strong = [t for t, score in scored if score >= STRONG]
    weak = [t for t, score in scored if score < STRONG]
    rows = calibration(turns)
    return {
        "kind": "llmlab-interview",
        "version": 1,
        "role": interview.role,
        "role_name": ROLES[interview.role],
        "student": who.name,
        "when": when.isoformat(timespec="minutes"),
        "minutes": interview.minutes,
        "used_minutes": round(interview.used_s / 60, 1),
        "seed": interview.seed,
        "answered": len(turns),
        "score": sum(score for _, score in scored) / len(scored) if scored else None,
        "highest_level": max((t.question.level for t in strong), key=LEVELS.index, default=None),
        "strengths": _by_subject(strong),
        "gaps": _by_subject(weak),
        "calibration": [{"level": r.level, "n": r.n, "score": r.score} for r in rows],
        "verdict": verdict(rows),
        "turns": [_row(t, who) for t in turns],
    }


def _subject(turn: Turn) -> str:
    covers = turn.question.covers
    name = next((name for name in covers if name not in _MANNER), covers[0])
    return curriculum().get(name, name)


def _by_subject(turns: list[Turn]) -> list[dict[str, Any]]:
    """One row a subject: levels, mean score, what to redo and what was missing."""
    groups: dict[str, list[Turn]] = {}
    for turn in turns:
        groups.setdefault(_subject(turn), []).append(turn)
    return [
        {
            "about": about,
            "levels": ", ".join(sorted({t.question.level for t in group})),
            "score": sum(t.score or 0.0 for t in group) / len(group),
            "redo": redo(list(dict.fromkeys(c for t in group for c in t.question.covers))),
            "missing": [text for t in group for text in _missing(t)],
        }
        for about, group in groups.items()
    ]


def _missing(turn: Turn) -> list[str]:
    """The points of the rubric that the learner did not find in their own words."""
    if not turn.self_scored or not isinstance(turn.question, ProseQuestion):
        return []
    return [c.text for c in turn.question.rubric if c.id not in turn.met]


def _row(turn: Turn, student: Student) -> dict[str, Any]:
    return {
        "id": turn.question.id,
        "part": TITLES[turn.part],
        "level": turn.question.level,
        "about": _subject(turn),
        "prompt": ask(turn.question, student).prompt,
        "answer": said(turn.question, turn.answer, student),
        "score": turn.score,
        "self_scored": turn.self_scored,
        "confidence": turn.confidence,
        "assumption": turn.assumption,
        "observation": turn.observation,
        "seconds": round(turn.seconds),
        "late": turn.late,
        "short": turn.question.short,
    }


def html(data: dict[str, Any]) -> str:
    """The page."""
    title = f"Mock interview: {data['role_name']}"
    return render("interview.html.j2", title=title, **data)


def percent(score: float | None) -> str:
    """A share as text, "-" where there is none."""
    return "-" if score is None else f"{score:.0%}"


def _plain(text: str) -> str:
    """Text that stays text in Markdown: no heading, list, link or HTML of its own."""
    folded = " ".join(text.split())
    for sign in "\\`*_[]<>#|":
        folded = folded.replace(sign, "\\" + sign)
    return folded


def markdown(data: dict[str, Any]) -> str:
    """The same page in Markdown."""
    n = data["answered"]
    who = f" of {_plain(data['student'])}" if data["student"] else ""
    lines = [
        f"# Mock interview{who}: {data['role_name']}",
        "",
        f"{data['when']}. {n} question{'' if n == 1 else 's'} in {data['used_minutes']:g} of "
        f"{data['minutes']:g} minutes. Score {percent(data['score'])}, highest level passed "
        f"{data['highest_level'] or 'none yet'}.",
        "",
        "## Strengths",
        "",
    ]
    lines += [f"- {r['about']} ({r['levels']}, {percent(r['score'])})" for r in data["strengths"]]
    lines += [] if data["strengths"] else ["None yet: that is what practice is for."]
    lines += ["", "## Gaps, and what to redo", ""]
    for row in data["gaps"]:
        lines.append(f"- {row['about']} ({row['levels']}, {percent(row['score'])}): {row['redo']}")
        lines += [f"  - missing: {_plain(text)}" for text in row["missing"]]
    lines += [] if data["gaps"] else ["None among what was asked."]
    lines += ["", "## Calibration", "", data["verdict"], ""]
    lines += ["| you said | answers | mean score |", "| --- | ---: | ---: |"]
    lines += [f"| {r['level']} | {r['n']} | {percent(r['score'])} |" for r in data["calibration"]]
    lines += ["", "## What was asked", ""]
    for number, row in enumerate(data["turns"], 1):
        lines += _turn_lines(number, row)
    return "\n".join(lines).rstrip() + "\n"


def _turn_lines(number: int, row: dict[str, Any]) -> list[str]:
    by = ", scored by yourself" if row["self_scored"] else ""
    late = ", after the time was up" if row["late"] else ""
    lines = [
        f"{number}. **{row['part']}, {row['level']}** ({percent(row['score'])}{by}, "
        f"{row['seconds']} s{late}): {_plain(row['prompt'])}",
        f"   - Your answer: {_plain(row['answer']) or 'none'}",
    ]
    if row["confidence"]:
        lines.append(f"   - You said: {row['confidence']}")
    if row["assumption"]:
        lines.append(f"   - Could change it: {_plain(row['assumption'])}")
    if row["observation"]:
        lines.append(f"   - Would make you revise it: {_plain(row['observation'])}")
    lines.append(f"   - Short answer: {_plain(row['short'])}")
    return lines

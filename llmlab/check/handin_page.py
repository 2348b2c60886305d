"""The hand-in as a page to read."""

from __future__ import annotations

from typing import Any

from llmlab.check import library
from llmlab.check.page import render
from llmlab.check.progress import Progress
from llmlab.check.result import GLYPHS
from llmlab.check.store import Store
from llmlab.check.units import number_text


def handin_html(store: Store, handin: dict[str, Any]) -> str:
    """HTML of a hand-in made from `store`."""
    questions = library.questions()
    rows = {row.item: row for row in Progress.of(store, [*library.items(), *questions]).rows}
    events = list(store.events())
    last = {e.item: e.data.get("answer") for e in events if e.kind == "attempt"}

    def shown(name: str) -> dict[str, Any]:
        row = rows[name]
        text = _answer_text(last.get(name, ""))
        return {
            "id": name,
            "state": row.state,
            "glyph": GLYPHS[row.state],
            "answer": text[:200],
            "attempts": row.attempts,
            "hints": row.hints,
        }

    sheets = [
        _group(sheet.title, sheet.name, [shown(item.id) for item in sheet.items])
        for sheet in library.worksheets().values()
        if any(rows[item.id].attempts or rows[item.id].hints for item in sheet.items)
    ]
    asked = [shown(name) for name in questions if rows[name].attempts or rows[name].hints]
    if asked:
        sheets.append(_group("Questions", "questions", asked))
    return render(
        "handin.html.j2",
        title=f"Hand-in of {handin['student'] or 'a learner without a name'}",
        when=handin["created"].replace("T", " ").replace("+00:00", " UTC"),
        fingerprint=handin["fingerprint"],
        done=sum(sheet["done"] for sheet in sheets),
        total=len(library.items()),
        attempts=sum(row.attempts for row in rows.values()),
        hints=sum(row.hints for row in rows.values()),
        sheets=sheets,
        prose=_prose(events),
        code=sorted(
            {e.item: e.data.get("passed") is True for e in events if e.kind == "code"}.items()
        ),
    )


def _answer_text(answer: Any) -> str:
    if isinstance(answer, float):
        return number_text(answer)
    if isinstance(answer, dict):
        return ", ".join(f"{key}: {value}" for key, value in answer.items())
    return ", ".join(map(str, answer)) if isinstance(answer, list) else str(answer)


def _group(title: str, name: str, items: list[dict[str, Any]]) -> dict[str, Any]:
    done = sum(item["state"] == "correct" for item in items)
    return {"title": title, "name": name, "parts": items, "done": done}


def _prose(events: list[Any]) -> list[dict[str, str]]:
    texts: dict[str, dict[str, str]] = {}
    for event in events:
        if event.kind == "prose":
            text = str(event.data.get("text", ""))
            texts[event.item] = {"id": event.item, "text": text, "score": "not scored yet"}
        elif event.kind == "self" and event.item in texts:
            share = float(event.data.get("score", 0.0))
            texts[event.item]["score"] = f"self score {share:.0%} of the rubric's points"
    return list(texts.values())

"""A class's hand-ins, made by a fixed recipe: 300 good, 20 mangled, 5 hostile."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from llmlab.check import library
from llmlab.check.handin import KIND, VERSION
from llmlab.check.solution import solution
from llmlab.check.student import Student

KEY = b"a course key for the generated class"
NAMES = ["Ada", "Björk", "Łukasz", "O'Neil, Pat", 'Quote "Q" Quinn', "李小龙", "José María", "Zoë"]


def person(number: int) -> tuple[str, str]:
    """Id and name."""
    return f"s{number:04d}", f"{NAMES[number % len(NAMES)]} {number}"


def write_roster(path: Path, count: int) -> None:
    import csv

    with path.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["id", "name", "email"])
        for number in range(count):
            own, name = person(number)
            writer.writerow([own, name, f"{own}@example.org"])


def event(
    item: str, answer: Any, student: str, state: str = "correct", n: int = 0
) -> dict[str, Any]:
    return {
        "uid": f"{student}-{item}-{n}",
        "time": "2026-11-01T10:00:00+00:00",
        "kind": "attempt",
        "item": item,
        "student": student,
        "data": {"answer": answer, "state": state, "score": 1.0},
    }


def handin(own: str, events: list[dict[str, Any]], key: bytes = KEY) -> dict[str, Any]:
    return {
        "kind": KIND,
        "version": VERSION,
        "student": own,
        "fingerprint": Student(own, key).fingerprint,
        "created": "2026-11-02T10:00:00+00:00",
        "lab": "0.1.0",
        "events": events,
    }


def good(number: int, skill: float) -> tuple[dict[str, Any], set[str]]:
    """A hand-in and the ids that are answered rightly in it. Wrong ones are far off."""
    own, _ = person(number)
    student = Student(own, KEY)
    dice = random.Random(number)
    right, events = set(), []
    for item in library.items():
        if dice.random() < skill:
            right.add(item)
            events.append(event(item, solution(item, student), own))
        else:
            events.append(event(item, 987654.25, own, "incorrect"))
    return handin(own, events), right


def write_good(folder: Path, count: int) -> dict[str, set[str]]:
    """Hand-ins of `count` students; returns file -> ids that are right."""
    truth = {}
    for number in range(count):
        data, right = good(number, 0.3 + 0.65 * number / max(1, count - 1))
        path = folder / f"handin-{number:04d}.json"
        path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
        truth[path.name] = right
    return truth


def write_mangled(folder: Path) -> list[str]:
    """Twenty files that are broken in twenty ways."""
    base, _ = good(0, 0.5)
    text = json.dumps(base)

    def with_(**changes: Any) -> str:
        return json.dumps({**base, **changes})

    contents: list[bytes | str] = [
        b"",
        b"{",
        text[: len(text) // 2],
        b"\xff\xfe\x00\x01",
        b"[]",
        b"null",
        b"42",
        b'"text"',
        b"{}",
        with_(kind="other"),
        with_(version=99),
        with_(version=True),
        with_(student=None),
        with_(student="nobody of this class"),
        with_(student=["s0001"]),
        with_(events={}),
        with_(events=[1, 2]),
        with_(events=[{"uid": 1}]),
        text.replace("987654.25", "NaN", 1),
        b"<html>not json</html>",
    ]
    assert len(contents) == 20
    names = []
    for number, content in enumerate(contents):
        path = folder / f"mangled-{number:02d}.json"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        names.append(path.name)
    return names


def write_hostile(folder: Path, outside: Path) -> list[str]:
    """Five files that want to do harm: too large, too deep, a link, a bomb, and a script."""
    (folder / "hostile-huge.json").write_bytes(b" " * 20_000_001)
    (folder / "hostile-deep.json").write_text("[" * 200_000)
    (folder / "hostile-link.json").symlink_to(outside)
    bomb = "\n".join(
        [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" if n else "a0: &a0 [x]" for n in range(9)]
    )
    (folder / "hostile-bomb.yaml").write_text(bomb)
    script = handin("<script>alert(1)</script>", [])
    (folder / "hostile-<img src=x onerror=alert(1)>.json").write_text(json.dumps(script))
    return sorted(p.name for p in folder.iterdir() if p.name.startswith("hostile"))

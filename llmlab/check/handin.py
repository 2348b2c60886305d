"""A student's hand-in: one JSON file made from the attempts, and an HTML file to read.

    {"kind": "llmlab-handin", "version": 1, "student": ..., "fingerprint": ...,
     "created": ..., "lab": ..., "events": [...]}

Nothing in it is trusted when it is graded: scores are worked out again from the raw answers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from llmlab.check.store import Event, Store
from llmlab.check.student import Student, clean_name

KIND = "llmlab-handin"
VERSION = 1
MAX_BYTES = 20_000_000
MAX_EVENTS = 50_000
_WORDS = ("uid", "time", "kind", "item", "student")


class HandInError(ValueError):
    """A file that is no hand-in; the text says why, for the grader's table."""


@dataclass(frozen=True)
class HandIn:
    """What a hand-in says, checked for its form only."""

    student: str
    fingerprint: str
    created: str
    events: tuple[Event, ...]


def build(store: Store, student: Student) -> dict[str, Any]:
    """The hand-in of everything in the store, as JSON data."""
    from llmlab import __version__

    return {
        "kind": KIND,
        "version": VERSION,
        "student": student.name,
        "fingerprint": student.fingerprint,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "lab": __version__,
        "events": [event.as_json() for event in store.events()],
    }


def _no_constant(name: str) -> Any:
    raise HandInError(f"{name} is not a number in JSON")


def read_json(path: Path) -> Any:
    """A JSON file as data; HandInError for what is too large, too deep or no JSON."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise HandInError(f"too large ({size:,} bytes; at most {MAX_BYTES:,})")
        if not size:
            raise HandInError("the file is empty")
        text = path.read_bytes().decode("utf-8-sig")
        return json.loads(text, parse_constant=_no_constant)
    except HandInError:
        raise
    except UnicodeDecodeError:
        raise HandInError("not text in UTF-8") from None
    except RecursionError:
        raise HandInError("nested too deeply") from None
    except json.JSONDecodeError as error:
        raise HandInError(f"not JSON (line {error.lineno}: {error.msg})") from None
    except ValueError:
        raise HandInError("holds a number that is too long") from None
    except OSError as error:
        raise HandInError(f"cannot be read ({error.strerror})") from None


def parse(data: Any) -> HandIn:
    """Check a hand-in's form; HandInError names the field that is wrong."""
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise HandInError("not a hand-in of llmlab (field kind)")
    if type(data.get("version")) is not int or data["version"] != VERSION:
        raise HandInError(f"hand-in version {str(data.get('version'))[:20]!r}; known is {VERSION}")
    student = _word(data, "student")
    try:
        student = clean_name(student)
    except ValueError as error:
        raise HandInError(str(error)) from None
    events = data.get("events")
    if not isinstance(events, list):
        raise HandInError("field events: must be a list")
    if len(events) > MAX_EVENTS:
        raise HandInError(f"field events: {len(events):,} entries; at most {MAX_EVENTS:,}")
    return HandIn(
        student,
        _word(data, "fingerprint")[:20],
        _word(data, "created")[:40],
        tuple(_event(event, i) for i, event in enumerate(events)),
    )


def _word(data: dict[str, Any], field: str) -> str:
    value = data.get(field)
    if not isinstance(value, str):
        raise HandInError(f"field {field}: must be text")
    return value


def _event(event: Any, number: int) -> Event:
    if not isinstance(event, dict) or not isinstance(event.get("data"), dict):
        raise HandInError(f"events[{number}]: must be an object with data")
    words = {name: event.get(name) for name in _WORDS}
    if not all(isinstance(word, str) and len(word) <= 200 for word in words.values()):
        raise HandInError(f"events[{number}]: {', '.join(_WORDS)} must be short texts")
    return Event(**{name: str(word) for name, word in words.items()}, data=event["data"])

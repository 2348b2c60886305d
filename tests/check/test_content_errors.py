"""Content that cannot be used is refused with file, line and field."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from llmlab.check import check, library, yaml_lines
from llmlab.check.audit import audit
from llmlab.check.yaml_lines import ContentError

GOOD = """\
title: Mine
parameters:
  wait: {first: 100, draw: [50, 80], unit: ms}
items:
  - id: X.wait
    covers: [A1]
    prompt: It waits {wait}. How long is twice that?
    answer: 2 * wait
    unit: ms
    tolerance: {relative: 0.01}
    hints: [Double it.]
    misconceptions:
      - id: half
        formula: wait / 2
        message: That is half.
"""
QUESTIONS = """\
title: Mine
topic: mine
questions:
  - id: X.choice
    kind: single
    covers: [A1]
    level: L1
    prompt: Which?
    short: This.
    full: This one.
    options:
      - {id: one, text: One, why: Right., correct: true}
      - {id: two, text: Two, why: Wrong.}
"""


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return path


BROKEN = [
    ("prompt: It waits {wait}. How", "promt: It waits {wait}. How", 7, "promt"),
    ("answer: 2 * wait", "answer: 2 * weight", 8, "weight"),
    ("answer: 2 * wait", "answer: __import__('os')", 8, "not allowed"),
    ("answer: 2 * wait", "answer: 9 ** 9 ** 9 * wait", 5, "too large"),
    ("{wait}. How", "{weight}. How", 7, "weight"),
    ("covers: [A1]", "covers: [Z9]", 6, "covers"),
    ("covers: [A1]", "covers: []", 6, "covers"),
    ("unit: ms\n    tol", "unit: parsec\n    tol", 9, "parsec"),
    ("{relative: 0.01}", "{}", 10, "tolerance"),
    ("{relative: 0.01}", "{relative: -1}", 10, "tolerance.relative"),
    ("{relative: 0.01}", "{relative: .nan}", 10, "tolerance.relative"),
    ("{relative: 0.01}", "{order_of_magnitude: 1, relative: 0.1}", 10, "alone"),
    ("formula: wait / 2", "formula: answer", 5, "gives the right answer"),
    ("first: 100", "first: true", 3, "wait.first"),
    ("first: 100", "first: .inf", 3, "wait.first"),
    ("draw: [50, 80]", "draw: []", 3, "draw"),
    ("id: X.wait", "id: ../x", 5, "id"),
    ("id: half\n", "id: half\n        id: half\n", 14, "twice"),
    ("title: Mine", "title: &a Mine\nintro: *a", 1, "aliases"),
    ("title: Mine", "title: [", 0, "not YAML"),
    ("hints: [Double it.]", "hints: [a, b, c, d]", 11, "hints"),
    ("title: Mine", "title: !!python/object/apply:os.system [true]", 1, "tag"),
]


def test_the_example_is_good(tmp_path: Path) -> None:
    assert library.read_worksheet(_file(tmp_path, GOOD)).items[0].id == "X.wait"


@pytest.mark.parametrize(("old", "new", "line", "said"), BROKEN)
def test_a_broken_worksheet_names_file_line_and_field(
    tmp_path: Path, old: str, new: str, line: int, said: str
) -> None:
    assert old in GOOD
    path = _file(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(ContentError) as caught:
        library.read_worksheet(path)
    text = str(caught.value)
    assert said in text
    assert "mine.yaml" in text
    if line:
        assert f"mine.yaml:{line}:" in text


def test_all_problems_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("answer: 2 * wait", "answer: 2 * no").replace(
        "formula: wait", "formula: nix"
    )
    with pytest.raises(ContentError) as caught:
        library.read_worksheet(_file(tmp_path, text))
    assert len(str(caught.value).split("\n")) == 2


def test_two_wrong_answers_with_one_number_are_refused(tmp_path: Path) -> None:
    more = "      - id: other\n        formula: wait * 0.5\n        message: Also half.\n"
    with pytest.raises(ContentError, match="'half' and 'other' give the same number"):
        library.read_worksheet(_file(tmp_path, GOOD + more))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("kind: single", "kind: singel", "kind"),
        ("level: L1", "level: L9", "level"),
        (", correct: true", "", "at least one must be correct"),
        ("why: Wrong.}", "why: Wrong., correct: true}", "correct"),
        ("id: two", "id: one", "twice"),
        ("id: two", "id: b", "longer id"),
        ("why: Wrong.", "wy: Wrong.", "wy"),
        ("level: L1", "level: L1\n    followups: [X.none]", "X.none"),
    ],
)
def test_a_broken_question_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, said: str
) -> None:
    _file(tmp_path, QUESTIONS.replace(old, new, 1))
    monkeypatch.setenv("LLMLAB_ITEMS", str(tmp_path))
    assert any(said in problem for problem in audit(1).problems)


def test_a_trace_that_is_not_there_or_lies_elsewhere_is_refused(tmp_path: Path) -> None:
    for trace in ("none.jsonl", "../../x.jsonl", "/etc/passwd", "x.txt"):
        text = QUESTIONS.replace("kind: single", f"kind: trace\n    trace: {trace}")
        with pytest.raises(ContentError, match="trace"):
            library.read_questions(_file(tmp_path, text))


def test_a_bomb_of_aliases_is_refused_at_once(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(ContentError, match="aliases"):
        library.read_worksheet(_file(tmp_path, "\n".join(lines)))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b"a: " + b"[" * 3000,
        b"- 1",
        b"null",
        b"x" * 2_000_000,
        b"a: b: c",
        b"? [1]\n: 2",
        b"\x00",
    ],
)
def test_any_file_is_a_worksheet_or_a_content_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    with pytest.raises(ContentError):
        library.read_worksheet(path)


def test_an_instructors_own_folder_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "w.yaml").write_text(GOOD)
    (tmp_path / "q.yaml").write_text(QUESTIONS)
    monkeypatch.setenv("LLMLAB_ITEMS", str(tmp_path))
    assert check("X.wait", 200).state == "correct"
    assert check("X.choice", "one").state == "correct"
    assert check("B11.ttft", 400).state == "correct"
    assert audit(5).problems == []


def test_a_broken_question_stops_no_worksheet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _file(tmp_path, QUESTIONS.replace("level: L1", "level: L9"))
    monkeypatch.setenv("LLMLAB_ITEMS", str(tmp_path))
    assert check("B11.ttft", 400).state == "correct"
    assert "level" in check("X.choice", "one").message


def test_a_folder_with_both_kinds_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, text in (("worksheets", GOOD), ("questions", QUESTIONS)):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "mine.yaml").write_text(text)
    monkeypatch.setenv("LLMLAB_ITEMS", str(tmp_path))
    assert check("X.wait", 200).state == "correct"
    assert check("X.choice", "one").state == "correct"


def test_a_problem_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "good.yaml").write_text(GOOD.replace("X.wait", "B11.ttft"))
    own = "unit: ms\n    parameters: {wait: {first: 1, draw: [2]}}\n    tol"
    (tmp_path / "twice.yaml").write_text(GOOD.replace("unit: ms\n    tol", own))
    monkeypatch.setenv("LLMLAB_ITEMS", str(tmp_path))
    assert [p.count("already") for p in audit(1).problems] == [1, 1]
    (tmp_path / "good.yaml").unlink()
    assert [p.count("already") for p in audit(1).problems] == [1]


@pytest.mark.parametrize("loader", ["CSafeLoader", "SafeLoader"])
def test_signs_that_yaml_forbids_are_refused_by_either_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loader: str
) -> None:
    monkeypatch.setattr(yaml_lines, "_Loader", getattr(yaml, loader))
    with pytest.raises(ContentError, match="not YAML"):
        library.read_worksheet(_file(tmp_path, "title: \x01"))


def test_an_id_that_is_taken_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _file(tmp_path, GOOD.replace("X.wait", "B11.ttft"))
    monkeypatch.setenv("LLMLAB_ITEMS", str(tmp_path))
    assert any("B11.ttft" in problem and "already" in problem for problem in audit(1).problems)
    result = check("B11.ttft", 400)
    assert result.state == "error"

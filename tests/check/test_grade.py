"""Grading a class: a row for every file, scores from raw answers, nothing executed."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path
from typing import Any

import pytest

from llmlab.check import library
from llmlab.check.csv_file import safe_cell
from llmlab.check.grade import Grader, Row, grade_folder
from llmlab.check.gradebook import Gradebook, read_overrides, write_all
from llmlab.check.judge import judge
from llmlab.check.notebook_answers import from_notebook
from llmlab.check.prose import digest
from llmlab.check.roster import Enrolled, read_roster
from llmlab.check.solution import solution
from llmlab.check.student import CURRICULUM, Student
from tests.check import corpus
from tests.every import every


def _class(count: int) -> Grader:
    return Grader([Enrolled(*corpus.person(n)) for n in range(count)], corpus.KEY)


def _grade(grader: Grader, folder: Path) -> dict[str, Row]:
    return {row.file: row for row in grade_folder(grader, folder)}


def _write(folder: Path, name: str, data: Any) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(data), encoding="utf-8")


def _one(tmp_path: Path, data: Any, count: int = 3) -> Row:
    _write(tmp_path / "in", "one.json", data)
    return _grade(_class(count), tmp_path / "in")["one.json"]


@pytest.mark.parametrize("count", [15, pytest.param(300, marks=pytest.mark.slow)])
def test_a_generated_class_gives_a_row_for_every_file(tmp_path: Path, count: int) -> None:
    """300 good files, 20 mangled, 5 hostile: 325 rows, each with a reason where it failed."""
    folder = tmp_path / "in"
    folder.mkdir()
    truth = corpus.write_good(folder, count)
    mangled = corpus.write_mangled(folder)
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps(corpus.handin("s0001", [])))
    hostile = corpus.write_hostile(folder, secret)
    corpus.write_roster(tmp_path / "roster.csv", count)

    grader = Grader(read_roster(tmp_path / "roster.csv"), corpus.KEY)
    rows = _grade(grader, folder)
    assert len(rows) == count + 25
    for name, right in truth.items():
        assert rows[name].graded, rows[name].reason
        assert {item for item, score in rows[name].scores.items() if score == 1} == right
        assert rows[name].flags == []
    for name in [*mangled, *hostile]:
        assert not rows[name].graded
        assert len(rows[name].reason) > 8
    assert len({rows[name].reason for name in mangled}) >= 12

    out = tmp_path / "out"
    out.mkdir()
    book = Gradebook(grader, list(rows.values()), {})
    write_all(book, out)
    with (out / "grades.csv").open(encoding="utf-8-sig", newline="") as text:
        lines = list(csv.DictReader(text))
    assert len(lines) == count + 25
    assert sum(line["status"] == "graded" for line in lines) == count
    page = (out / "summary.html").read_text()
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;" in page
    # What wants a hand comes before a class's long table.
    assert page.index("<h2>Not graded") < page.index("<h2>Students")


def test_item_statistics_show_difficulty_and_discrimination(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    truth = corpus.write_good(folder, 60)
    grader = _class(60)
    from llmlab.check.compare import item_statistics

    found = {s.item: s for s in item_statistics(grader, list(_grade(grader, folder).values()))}
    share = sum("B11.ttft" in right for right in truth.values()) / 60
    assert found["B11.ttft"].difficulty == pytest.approx(share)
    defined = [s.discrimination for s in found.values() if s.discrimination is not None]
    assert sum(defined) / len(defined) > 0.1  # skill grows over the class, so items agree


def test_discrimination_is_the_correlation_with_the_rest(tmp_path: Path) -> None:
    import numpy as np

    folder = tmp_path / "in"
    folder.mkdir()
    corpus.write_good(folder, 20)
    grader = _class(20)
    rows = list(_grade(grader, folder).values())
    from llmlab.check.compare import item_statistics

    matrix = np.array([[r.scores.get(i, 0.0) for i in grader.items] for r in rows])
    for column, name in enumerate(grader.items):
        stat = next(s for s in item_statistics(grader, rows) if s.item == name)
        rest = matrix.sum(axis=1) - matrix[:, column]
        if matrix[:, column].std() and rest.std():
            assert stat.discrimination == pytest.approx(np.corrcoef(matrix[:, column], rest)[0, 1])


@pytest.mark.timing
def test_a_thousand_handins_take_less_than_thirty_seconds(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    corpus.write_good(folder, 1000)
    grader = _class(1000)
    started = time.process_time()
    rows = grade_folder(grader, folder)
    out = tmp_path / "out"
    out.mkdir()
    write_all(Gradebook(grader, rows, {}), out)
    assert time.process_time() - started < 30
    assert len(rows) == 1000


def test_a_claimed_score_is_worth_nothing(tmp_path: Path) -> None:
    row = _one(tmp_path, corpus.handin("s0001", [corpus.event("B11.ttft", 1, "s0001", "correct")]))
    assert row.scores == {"B11.ttft": 0.0}
    assert any("recorded as correct" in flag for flag in row.flags)


def test_the_best_of_several_attempts_counts(tmp_path: Path) -> None:
    right = solution("B11.ttft", Student("s0001", corpus.KEY))
    events = [corpus.event("B11.ttft", a, "s0001", n=i) for i, a in enumerate([7, right, 8])]
    row = _one(tmp_path, corpus.handin("s0001", events))
    assert row.scores["B11.ttft"] == 1
    assert row.attempts["B11.ttft"] == 3


def test_answers_for_another_students_numbers_are_flagged(tmp_path: Path) -> None:
    other = Student("s0002", corpus.KEY)
    items = ["B11.e2e", "B12.e2e", "C6.ttft"]
    events = [corpus.event(i, solution(i, other), "s0001", "incorrect") for i in items]
    row = _one(tmp_path, corpus.handin("s0001", events))
    assert [f for f in row.flags if "3 answers right for the numbers of Łukasz 2" in f]


def test_answers_for_the_curriculums_numbers_are_flagged(tmp_path: Path) -> None:
    data = corpus.handin("s0001", [corpus.event("B11.e2e", 1380, "s0001", "correct")])
    data["fingerprint"] = CURRICULUM.fingerprint
    row = _one(tmp_path, data)
    assert any("the curriculum" in flag and "right for" in flag for flag in row.flags)
    assert any("worked with the curriculum's own numbers" in flag for flag in row.flags)


@pytest.fixture
def prose_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An instructor's own question in words."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "words.yaml").write_text(
        "title: Words\ntopic: words\nquestions:\n  - {id: X.words, kind: prose, covers: [B13], "
        "level: L2, prompt: Why?, short: So., full: Because., points: 4}\n"
    )
    monkeypatch.setenv("LLMLAB_ITEMS", str(folder))


def _prose(own: str, text: str, met: list[str] | None = None) -> dict[str, Any]:
    name = "X.words"
    events = [
        {
            **corpus.event(name, None, own),
            "kind": "prose",
            "data": {"text": text, "sha256": digest(text)},
        }
    ]
    if met is not None:
        events.append(
            {
                **corpus.event(name, None, own, n=1),
                "kind": "self",
                "data": {"met": met, "score": 9.0, "sha256": digest(text)},
            }
        )
    return corpus.handin(own, events)


@pytest.mark.usefixtures("prose_question")
def test_identical_prose_is_flagged_for_both(tmp_path: Path) -> None:
    text = "The scheduler keeps the GPU busy while each request waits longer for its turn."
    folder = tmp_path / "in"
    for own, words in (("s0000", text), ("s0001", text.replace(" ", "  ")), ("s0002", text[:-5])):
        _write(folder, f"{own}.json", _prose(own, words))
    rows = _grade(_class(3), folder)
    flagged = [name for name, row in rows.items() if any("identical" in f for f in row.flags)]
    assert flagged == ["s0000.json", "s0001.json"]


@pytest.mark.usefixtures("prose_question")
def test_self_points_are_worked_out_again_and_kept_apart(tmp_path: Path) -> None:
    question = library.find_question("X.words")
    first = question.rubric[0]  # type: ignore[union-attr]
    total = sum(c.points for c in question.rubric)  # type: ignore[union-attr]
    _write(tmp_path / "in", "one.json", _prose("s0001", "Some words.", [first.id, "invented"]))
    grader = _class(3)
    rows = _grade(grader, tmp_path / "in")
    points = Gradebook(grader, list(rows.values()), {}).points(rows["one.json"])
    assert points.self == pytest.approx(first.points / total * question.points)
    assert (points.auto, points.total) == (0, 0)


@pytest.mark.usefixtures("prose_question")
def test_a_self_score_without_its_text_is_flagged(tmp_path: Path) -> None:
    data = _prose("s0001", "Some words.", ["result"])
    data["events"][0]["data"]["text"] = "Other words."
    row = _one(tmp_path, data)
    assert row.self_scores == {}
    assert any("without the committed text" in flag for flag in row.flags)


def test_code_results_are_advisory(tmp_path: Path) -> None:
    code = {**corpus.event("attention", None, "s0001"), "kind": "code", "data": {"passed": True}}
    _write(tmp_path / "in", "one.json", corpus.handin("s0001", [code]))
    grader = _class(3)
    rows = _grade(grader, tmp_path / "in")
    book = Gradebook(grader, list(rows.values()), {})
    assert book.points(rows["one.json"]).total == 0
    assert "1 of 1" in book.as_json()["rows"][0]["code_advisory"]


def test_regrading_keeps_what_the_instructor_wrote(tmp_path: Path) -> None:
    right = solution("B11.ttft", Student("s0001", corpus.KEY))
    events = [corpus.event("B11.ttft", right, "s0001"), corpus.event("B11.e2e", 3, "s0001")]
    _write(tmp_path / "in", "one.json", corpus.handin("s0001", events))
    out = tmp_path / "out"
    out.mkdir()
    overrides = out / "overrides.csv"
    grader = _class(3)
    assert read_overrides(overrides, grader) == {}
    with overrides.open("a", encoding="utf-8") as text:
        text.write('s0001,B11.e2e,0.75,"good idea, wrong gap"\n')
    kept = overrides.read_bytes()
    for _ in range(2):
        book = Gradebook(
            grader, grade_folder(grader, tmp_path / "in"), read_overrides(overrides, grader)
        )
        write_all(book, out)
        points = book.points(book.rows[0])
        assert (points.auto, points.instructor, points.total) == (1.0, 0.75, 1.75)
    assert overrides.read_bytes() == kept


@pytest.mark.parametrize(
    "line",
    [
        "s0001,B11.e2e,many,",
        "nobody,B11.e2e,1,",
        "s0001,B99.x,1,",
        "s0001,B11.e2e,nan,",
        "s0001,B11.e2e,-1,",
    ],
)
def test_a_wrong_override_is_named_with_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "overrides.csv"
    path.write_text(f"student,item,points,comment\n{line}\n")
    with pytest.raises(ValueError, match=r"overrides\.csv:2"):
        read_overrides(path, _class(3))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"student;item;comment\n", "column `points`"),
        ("student,item,points,comment\ns0001,B11.e2e,1,für\n".encode("cp1252"), "UTF-8"),
        (b'student,item,points,comment\ns0001,B11.e2e,1,"open\n', "not CSV"),
    ],
)
def test_overrides_that_cannot_be_read_say_why(tmp_path: Path, text: bytes, said: str) -> None:
    path = tmp_path / "overrides.csv"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=said):
        read_overrides(path, _class(3))


def test_overrides_may_come_from_a_spreadsheet_that_writes_semicolons(tmp_path: Path) -> None:
    path = tmp_path / "overrides.csv"
    path.write_text("Student;Item;Points;Comment\n\ns0001;B11.e2e;0.5;good, but late\n;;;\n")
    assert read_overrides(path, _class(3)) == {"s0001": {"B11.e2e": 0.5}}


def test_an_override_counts_once_for_a_student_with_two_files(tmp_path: Path) -> None:
    old, new = corpus.handin("s0001", []), corpus.handin("s0001", [])
    new["created"] = "2026-11-09T10:00:00+00:00"
    _write(tmp_path / "in", "a.json", new)
    _write(tmp_path / "in", "b.json", old)
    rows = _grade(_class(3), tmp_path / "in")
    assert (rows["a.json"].counted, rows["b.json"].counted) == (True, False)
    assert any("a.json is later" in flag for flag in rows["b.json"].flags)


@every(["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "＝1"])
def test_no_cell_is_a_formula(risky: str) -> None:
    assert safe_cell(risky).startswith("'")


def test_numbers_and_names_stay_as_they_are_in_a_cell() -> None:
    assert safe_cell(-1.5) == -1.5
    assert safe_cell("Björk, Ñandú") == "Björk, Ñandú"


def test_a_name_that_is_a_formula_is_no_formula_in_the_csv(tmp_path: Path) -> None:
    grader = Grader([Enrolled("=cmd|' /C calc'!A0", '=HYPERLINK("http://x")')], corpus.KEY)
    _write(tmp_path / "in", "=1+1.json", corpus.handin("=cmd|' /C calc'!A0", []))
    rows = grade_folder(grader, tmp_path / "in")
    out = tmp_path / "out"
    out.mkdir()
    write_all(Gradebook(grader, rows, {}), out)
    with (out / "grades.csv").open(encoding="utf-8-sig", newline="") as text:
        cells = list(csv.reader(text))[1]
    assert cells[1] == "graded"
    assert not any(cell.startswith(("=", "+", "-", "@")) for cell in cells)


def test_a_name_with_markup_is_escaped_in_the_page(tmp_path: Path) -> None:
    grader = Grader([Enrolled("x", "<script>alert('n')</script>")], corpus.KEY)
    _write(tmp_path / "in", "one.json", corpus.handin("x", []))
    rows = grade_folder(grader, tmp_path / "in")
    write_all(Gradebook(grader, rows, {}), tmp_path)
    page = (tmp_path / "summary.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_links_folders_and_pipes_are_not_followed(tmp_path: Path) -> None:
    import os

    outside = tmp_path / "outside"
    _write(outside, "secret.json", corpus.handin("s0001", []))
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "link.json").symlink_to(outside / "secret.json")
    (folder / "folder").symlink_to(outside)
    os.mkfifo(folder / "pipe.json")
    rows = _grade(_class(3), folder)
    assert set(rows) == {"link.json", "folder", "pipe.json"}
    assert not any(row.graded for row in rows.values())
    assert "a link" in rows["link.json"].reason


def test_events_of_a_wrong_type_do_not_stop_the_rest(tmp_path: Path) -> None:
    right = solution("B12.gaps", Student("s0001", corpus.KEY))
    odd = [
        corpus.event("B11.ttft", value, "s0001", n=n)
        for n, value in enumerate([None, [], {}, True, "x" * 10_000, 10**300, [[[1]]], {"a": "b"}])
    ]
    row = _one(tmp_path, corpus.handin("s0001", [*odd, corpus.event("B12.gaps", right, "s0001")]))
    assert row.graded
    assert row.scores["B12.gaps"] == 1
    assert row.scores["B11.ttft"] == 0


def test_a_name_of_the_roster_is_found_too_unless_two_have_it(tmp_path: Path) -> None:
    grader = Grader([Enrolled("1", "Ada"), Enrolled("2", "Bob"), Enrolled("3", "bob")], corpus.KEY)
    for file, name in (("a.json", "ada"), ("b.json", "Bob")):
        _write(tmp_path / "in", file, corpus.handin(name, []))
    rows = _grade(grader, tmp_path / "in")
    assert rows["a.json"].id == "1"
    assert "2 students" in rows["b.json"].reason


def test_a_notebook_is_read_as_data(tmp_path: Path) -> None:
    student = Student("s0001", corpus.KEY)
    trap = tmp_path / "ran"
    source = [
        f"open({str(trap)!r}, 'w').write('x')\n",
        "ttft = ...\n",
        f"ttft = {solution('B11.ttft', student)}\n",
        "check('B11.ttft', ttft)\n",
        f"check('B11.e2e', {solution('B11.e2e', student) - 100} + 50 * 2)\n",
        "check('B12.gaps', compute())\n",
        "check('B12.ttft', ...)\n",
    ]
    cells = [
        {"cell_type": "markdown", "source": "check('C6.ttft', 1)"},
        {"cell_type": "code", "source": source},
        {"cell_type": "code", "source": "%magic\nthis is not python ("},
        {"cell_type": "code", "source": None},
        "not a cell",
    ]
    _write(tmp_path / "in", "s0001.ipynb", {"cells": cells, "metadata": {}})
    row = _grade(_class(3), tmp_path / "in")["s0001.ipynb"]
    assert row.scores == {"B11.ttft": 1.0, "B11.e2e": 1.0}
    assert any("B12.gaps" in flag for flag in row.flags)
    assert not trap.exists()


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        ("x = 3\ncheck('B11.e2e', x)", 3),
        ("x: float = 3\ncheck('B11.e2e', x)", 3),
        ("x = y = 3\ncheck('B11.e2e', y + 1)", 4),
        ("check('B11.e2e', answer=3)", 3),
        ("check('B11.e2e', 3, store=None)", 3),
        ("x = 3\ny = [x for x in range(5)]\ncheck('B11.e2e', x)", 3),
        ("x = 3\ndef f():\n    x = 5\ncheck('B11.e2e', x)", 3),
        ("x = 3\nx += 1\ncheck('B11.e2e', x)", None),
        ("x = 3\nfor x in range(5): pass\ncheck('B11.e2e', x)", None),
        ("x = 3\nif 1:\n    x = 5\ncheck('B11.e2e', x)", None),
        ("x = 3\nx, y = 4, 5\ncheck('B11.e2e', x)", None),
        ("x = 3\ndel x\ncheck('B11.e2e', x)", None),
    ],
)
def test_a_name_has_the_value_it_was_given_last_or_none_that_can_be_read(
    source: str, answer: float | None
) -> None:
    found = from_notebook({"cells": [{"cell_type": "code", "source": source}]})
    assert found.answers.get("B11.e2e") == answer
    assert found.unreadable == ([] if answer else ["B11.e2e"])


@pytest.mark.parametrize("data", [[], {}, {"cells": 3}, {"cells": [{}] * 3000}, None])
def test_a_file_that_is_no_notebook_has_a_reason(tmp_path: Path, data: Any) -> None:
    _write(tmp_path / "in", "s0001.ipynb", data)
    row = _grade(_class(3), tmp_path / "in")["s0001.ipynb"]
    assert not row.graded


def test_only_chosen_worksheets_can_be_graded(tmp_path: Path) -> None:
    grader = Grader([Enrolled("s0001", "x")], corpus.KEY, only=["b12"])
    data, _ = corpus.good(1, 1.0)
    _write(tmp_path / "in", "one.json", data)
    rows = grade_folder(grader, tmp_path / "in")
    assert set(rows[0].scores) == {item.id for item in library.load_worksheet("b12").items}
    with pytest.raises(ValueError, match="b12"):
        Grader([], corpus.KEY, only=["b1 2"])


def test_grading_judges_as_the_lab_does() -> None:
    """One judge for both: the lab's state is what the grade finds for the same numbers."""
    student = Student("s0007", corpus.KEY)
    for item in list(library.items().values())[::7]:
        for answer in (solution(item.id, student), 1, "0.4 s", "words"):
            grader = Grader([Enrolled("s0007", "x")], corpus.KEY)
            result = grader._judge(item.id, answer, grader.students["s0007"])
            assert result == judge(item, answer, student)

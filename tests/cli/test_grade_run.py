"""Grading through the executor: the same grades whoever grades, and a killed run goes on."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from llmlab.check import library
from llmlab.check.grade import Course, Row, grade_folder, grader_of
from llmlab.check.roster import Enrolled, read_roster
from llmlab.cli.grade_run import KEPT, grade_rows
from llmlab.cli.main import LazyGroup
from llmlab.executor import Done, Serial
from tests.check import corpus

GRADES = ("grades.csv", "items.csv", "grades.json", "summary.html")
UNREADABLE = "check('B11.ttft', {5})\ncheck('B11.tpot', (1, 2))\ncheck('B12.gaps', 3 + 4j)"


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LLMLAB_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.delenv("LLMLAB_ITEMS", raising=False)


@pytest.fixture
def handins(tmp_path):
    """Good, mangled and hostile files, and a notebook whose answers no JSON can hold."""
    folder = tmp_path / "in"
    folder.mkdir()
    corpus.write_good(folder, 6)
    corpus.write_mangled(folder)
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    corpus.write_hostile(folder, secret)
    cell = {"cell_type": "code", "source": UNREADABLE}
    (folder / "s0001.ipynb").write_text(json.dumps({"cells": [cell], "metadata": {}}))
    corpus.write_roster(tmp_path / "roster.csv", 6)
    (tmp_path / "key").write_bytes(corpus.KEY)
    return folder


def grade(*more, code=0):
    words = ["grade", "in", "--roster", "roster.csv", "--course-key-file", "key", *more]
    with pytest.raises(SystemExit) as ended:
        LazyGroup(name="llmlab")(words, prog_name="llmlab")
    assert (ended.value.code or 0) == code


def written(folder):
    """What grading wrote, but for the time on the page."""
    out = {name: (Path(folder) / name).read_text() for name in GRADES}
    out["summary.html"] = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", "", out["summary.html"])
    return out


@pytest.mark.slow
def test_processes_give_the_same_grades_byte_for_byte(handins):
    grade("--workers", "0", "--out", "one")
    grade("--workers", "2", "--out", "two")
    assert written("one") == written("two")
    assert not (Path("two") / KEPT).exists()


@pytest.mark.slow
def test_dask_gives_the_same_grades_byte_for_byte(handins):
    grade("--workers", "0", "--out", "one")
    grade("--dask", "--workers", "2", "--out", "two")
    assert written("one") == written("two")


def course():
    return Course(tuple(read_roster(Path("roster.csv"))), corpus.KEY)


class Counting(Serial):
    """Runs here, counts, and stops after so many."""

    def __init__(self, most=10**9):
        self.ran, self.most = [], most

    def run(self, function, cells):
        for done in super().run(function, cells):
            if len(self.ran) == self.most:
                raise KeyboardInterrupt
            self.ran.append(done.cell)
            yield done


def rows(folder, out, runner):
    made = course()
    return grade_rows(grader_of(made), made, folder, out, runner)


def test_a_stopped_run_goes_on_and_gives_the_rows_of_an_undisturbed_one(handins, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    whole = grade_folder(grader_of(course()), handins)
    first, second = Counting(most=9), Counting()
    with pytest.raises(KeyboardInterrupt):
        rows(handins, out, first)
    seen = rows(handins, out, second)
    assert len(first.ran) + len(second.ran) == len(whole)
    assert not set(first.ran) & set(second.ran)

    def shown(row):  # a set or a tuple in `wrong` is a number to nobody, whatever it is
        return {**row.to_json(), "wrong": len(row.wrong)}

    assert [shown(row) for row in seen] == [shown(row) for row in whole]


@pytest.mark.parametrize("change", ["file", "key", "worksheet"])
def test_kept_rows_are_used_only_while_nothing_has_changed(handins, tmp_path, change):
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(KeyboardInterrupt):
        rows(handins, out, Counting(most=9))
    made = course()
    if change == "file":
        os.utime(handins / "handin-0000.json", (1, 1))
    elif change == "key":
        made = Course(made.roster, b"another key of the course")
    else:
        made = Course(made.roster, made.key, ("b11",))
    again = Counting()
    found = grade_rows(grader_of(made), made, handins, out, again)
    assert len(again.ran) == len(found)


def test_a_row_comes_back_from_its_file_as_it_was():
    row = Row("f", id="s", scores={"b": 0.5, "a": 1.0}, wrong=[("a", 0.1), ("b", "3 ms")])
    assert Row.from_json(json.loads(json.dumps(row.to_json()))) == row
    strange = Row("f", wrong=[("a", {5}), ("b", 3j), ("c", float("nan")), ("d", 10**9999)])
    assert json.loads(json.dumps(strange.to_json(), allow_nan=False))["wrong"][1] == ["b", []]


def test_a_file_that_kills_its_grader_is_a_row_with_a_reason(handins, tmp_path):
    out = tmp_path / "out"
    out.mkdir()

    made = Course((Enrolled("s0001", "A"),), corpus.KEY)

    class Reports(Serial):
        def run(self, function, cells):
            for number, cell in cells:
                if number == 3:
                    yield Done(number, error="the worker died twice on this cell (SIGKILL)")
                else:
                    yield Done(number, function(cell))

    found = grade_rows(grader_of(made), made, handins, out, Reports())
    assert found[3].reason == "could not be graded (the worker died twice on this cell (SIGKILL))"
    assert len([row for row in found if "SIGKILL" in row.reason]) == 1


def test_points_for_another_worksheet_wait_and_unknown_ones_are_an_error(handins, capsys):
    grade("--out", "out")
    overrides = Path("out/overrides.csv")
    other = next(i for i in library.items() if not i.startswith("B11"))
    bank = next(iter(library.questions()))
    overrides.write_text(
        f"student,item,points,comment\ns0001,B11.ttft,7,\ns0001,{other},5,\ns0001,{bank},3,\n"
    )
    grade("--out", "out", "--worksheet", "b11", "--json")
    seen = json.loads(capsys.readouterr().out.splitlines()[-1])
    (row,) = [r for r in seen["rows"] if r["file"] == "handin-0001.json"]
    assert row["instructor"] == 7
    overrides.write_text("student,item,points,comment\ns0001,no.such,7,\n")
    grade("--out", "out", "--worksheet", "b11", code=2)
    assert "no item 'no.such'" in capsys.readouterr().err

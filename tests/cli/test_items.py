"""`llmlab items`, `student`, `sheet`, `report` and `grade` from the outside."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from llmlab.check import check, current_student, find_item
from llmlab.cli.main import LazyGroup


class Shell:
    """Runs the command in this process, with a working and a data folder of its own."""

    def __init__(
        self, folder: Path, env: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]
    ) -> None:
        self.folder = folder
        self.env = env
        self.capture = capture
        env.chdir(folder)
        env.setenv("LLMLAB_DATA_DIR", str(folder / "data"))
        env.setenv("NO_COLOR", "1")
        env.setenv("COLUMNS", "80")
        env.delenv("JUPYTERHUB_USER", raising=False)
        env.delenv("LLMLAB_ITEMS", raising=False)

    def __call__(self, *words: str, code: int = 0) -> str:
        self.capture.readouterr()
        with pytest.raises(SystemExit) as ended:
            LazyGroup(name="llmlab")(list(words), prog_name="llmlab")
        seen = self.capture.readouterr()
        assert (ended.value.code or 0) == code, seen.out + seen.err
        assert "Traceback" not in seen.err
        self.err = seen.err
        return seen.out


@pytest.fixture
def llmlab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    return Shell(tmp_path, monkeypatch, capsys)


@pytest.mark.slow
def test_the_command_itself_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "llmlab.cli.main", "items", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "b11" in json.loads(done.stdout)["worksheets"]


def test_items_check_prints_the_four_keys_and_nothing_else(llmlab: Shell) -> None:
    found = json.loads(llmlab("items", "--check", "--json"))
    assert {"items", "questions", "misconceptions", "uncovered"} <= set(found)
    assert found["items"] >= 80
    assert found["problems"] == []


def test_items_check_names_the_fault_of_an_instructors_file(llmlab: Shell) -> None:
    own = llmlab.folder / "own"
    own.mkdir()
    (own / "mine.yaml").write_text("title: Mine\nitems: []\n")
    (own / "other.yaml").write_text("title: [\n")
    llmlab.env.setenv("LLMLAB_ITEMS", str(own))
    llmlab("items", "--check", code=1)
    assert "mine.yaml:2: items" in llmlab.err
    assert "other.yaml" in llmlab.err
    llmlab("items", code=2)
    assert "items --check" in llmlab.err


def test_a_folder_of_items_that_does_not_exist_is_an_error(llmlab: Shell) -> None:
    llmlab.env.setenv("LLMLAB_ITEMS", str(llmlab.folder / "none"))
    llmlab("items", "--check", code=1)
    assert "LLMLAB_ITEMS" in llmlab.err


def test_a_learner_says_who_they_are(llmlab: Shell) -> None:
    assert json.loads(llmlab("student", "--json"))["numbers"] == "curriculum"
    llmlab("student", "Zoë [red]B[/red]")
    assert json.loads(llmlab("student", "--json"))["student"] == "Zoë [red]B[/red]"
    assert "Zoë [red]B[/red]" in llmlab("student")
    llmlab("student", "--forget")
    assert json.loads(llmlab("student", "--json"))["student"] == ""
    llmlab("student", "x" * 500, code=2)
    llmlab("student", "--sheet", "none.json", code=2)


def _answer() -> list[str]:
    """What a learner's notebook does."""
    values = find_item("B11.ttft").parameters_for(current_student())
    right = values["wait"] + values["preprocessing"] + values["prefill"]
    return [check("B11.ttft", right).state, check("B12.gaps", "many").state]


def test_a_course_from_key_to_grade(llmlab: Shell) -> None:
    (llmlab.folder / "r.csv").write_text('id,name\ns1,"Lovelace, Ada"\ns2,Björk\n')
    llmlab("sheet", "--new-key", "k")
    llmlab("sheet", "--new-key", "k", code=2)
    written = json.loads(llmlab("sheet", "--roster", "r.csv", "--course-key-file", "k", "--json"))
    assert (llmlab.folder / "k").read_text().strip() not in Path(
        llmlab.folder / written["s1"]
    ).read_text()
    llmlab("student", "--sheet", written["s1"])
    assert _answer() == ["correct", "error"]
    made = json.loads(llmlab("report", "--out", "in", "--json"))
    assert made["attempts"] == 2
    assert "<script" not in (llmlab.folder / made["page"]).read_text()

    book = json.loads(
        llmlab("grade", "in", "--roster", "r.csv", "--course-key-file", "k", "--json")
    )
    (row,) = book["rows"]
    assert (row["status"], row["name"], row["auto"]) == ("graded", "Lovelace, Ada", 1.0)
    assert row["flags"] == []
    assert book["missing"] == ["Björk"]
    assert (llmlab.folder / "grades" / "overrides.csv").is_file()
    assert "1 files: 1 graded" in llmlab(
        "grade", "in", "--roster", "r.csv", "--course-key-file", "k"
    )


def test_files_that_were_not_graded_are_all_counted(llmlab: Shell) -> None:
    (llmlab.folder / "r.csv").write_text("name\nAda\n")
    (llmlab.folder / "in").mkdir()
    for n in range(33):
        (llmlab.folder / "in" / f"[{n}].json").write_text("{")
    said = llmlab("grade", "in", "--roster", "r.csv")
    assert "33 files: 0 graded, 33 not" in said
    assert "[0].json" in said
    assert "and 3 more, in grades.csv" in said


def test_progress_goes_out_and_in(llmlab: Shell) -> None:
    _answer()
    assert json.loads(llmlab("report", "--export", "all.jsonl", "--json"))["events"] == 2
    llmlab.env.setenv("LLMLAB_DATA_DIR", str(llmlab.folder / "elsewhere"))
    assert json.loads(llmlab("report", "--import", "all.jsonl", "--json"))["added"] == 2
    (llmlab.folder / "bad.jsonl").write_text("nonsense\n")
    llmlab("report", "--import", "bad.jsonl", code=2)
    assert "bad.jsonl:1" in llmlab.err
    llmlab("report", "--import", "none.jsonl", code=2)
    assert "cannot read none.jsonl" in llmlab.err
    assert "--out" not in llmlab.err
    llmlab("report", "--export", "no/where.jsonl", code=2)
    assert "choose another --export" in llmlab.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["grade", "none", "--roster", "r.csv"], "no such folder"),
        (["grade", ".", "--roster", "none.csv"], "none.csv"),
        (["grade", ".", "--roster", "r.csv", "--course-key-file", "none"], "--new-key"),
        (["grade", ".", "--roster", "r.csv", "--worksheet", "b111"], "b11"),
        (["sheet", "--roster", "r.csv"], "--course-key-file"),
        (["sheet", "--roster", "twice.csv", "--course-key-file", "r.csv"], "same id"),
    ],
)
def test_bad_input_is_one_clear_sentence(llmlab: Shell, words: list[str], said: str) -> None:
    (llmlab.folder / "r.csv").write_text("name,something\nAda,long enough for a key\n")
    (llmlab.folder / "twice.csv").write_text("id,name\n1,Ada\n1,Bob\n")
    llmlab(*words, code=2)
    assert said in llmlab.err


@pytest.mark.parametrize("command", ["items", "student", "sheet", "report", "grade"])
def test_help_has_an_example(llmlab: Shell, command: str) -> None:
    text = llmlab(command, "--help")
    assert f"llmlab {command}" in " ".join(text.split())
    assert "Example" in text

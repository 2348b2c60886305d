"""`llmlab interview` with answers from a pipe and a clock of the test's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from llmlab.check.store import Store
from llmlab.cli import interview as module

WORDS = "Prefill fills the cache; decode writes a token per step.\n\n2\n1 2 3\n"


class Clock:
    """Each look at the clock is `step` seconds later."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LLMLAB_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("JUPYTERHUB_USER", raising=False)
    monkeypatch.delenv("LLMLAB_ITEMS", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*args: str, typed: str, clock: Clock | None = None, monkeypatch=None):
    if clock is not None:
        monkeypatch.setattr(module, "CLOCK", clock)
    return CliRunner().invoke(module.app, list(args), input=typed)


def test_a_whole_interview_ends_in_a_page_and_markdown(inside, monkeypatch):
    typed = WORDS + "s\n" * 40
    done = run("--minutes", "10", typed=typed, clock=Clock(1), monkeypatch=monkeypatch)
    assert done.exit_code == 0, done.output
    assert "That was the last question." in done.output
    page, text = (inside / "interview.html").read_text(), (inside / "interview.md").read_text()
    for told in ("Strengths", "Gaps, and what to redo", "Calibration"):
        assert told in page
        assert told in text
    assert "Prefill fills the cache" in page
    store = Store(inside / "data" / "progress.db")
    assert len(list(store.events("prose"))) == 1
    assert next(store.events("interview")).data["answered"] == 5
    store.close()


def test_the_rubric_comes_after_the_commitment(inside, monkeypatch):
    done = run("--minutes", "5", typed=WORDS, clock=Clock(1), monkeypatch=monkeypatch)
    before, mark, after = done.output.partition("Committed, sha256")
    assert mark
    assert "Names a measurement" not in before
    assert "Names a measurement" in after


def test_words_without_end_do_not_end_the_interview(inside, monkeypatch):
    typed = f"{'x' * 20_001}\n\n{WORDS}"
    done = run("--minutes", "5", typed=typed, clock=Clock(1), monkeypatch=monkeypatch)
    assert done.exit_code == 0
    assert "at most 20,000 characters" in done.output
    assert "Prefill fills the cache" in (inside / "interview.html").read_text()


def test_when_the_time_is_up_nothing_more_is_asked(inside, monkeypatch):
    done = run("--minutes", "5", typed=WORDS + "s\n" * 9, clock=Clock(80), monkeypatch=monkeypatch)
    assert "The time is up." in done.output
    assert done.output.count("left ─") <= 3
    assert all(len(line) <= 80 for line in done.output.splitlines())


def test_input_that_ends_still_writes_the_report_with_what_was_answered(inside):
    done = run("--out", "early.html", "--json", typed=WORDS)
    assert done.exit_code == 0
    data = json.loads((inside / "early.json").read_text())
    assert data["answered"] == 1
    assert data["score"] == 0.75
    assert (inside / "early.html").exists()


def test_ctrl_c_writes_the_report_and_exits_130(inside, monkeypatch):
    lines = iter([*WORDS.split("\n")[:-1]])

    def typed() -> str:
        try:
            return next(lines)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr("builtins.input", typed)
    done = CliRunner().invoke(module.app, [])
    assert done.exit_code == 130
    assert "75 %" in (inside / "interview.html").read_text()


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--role", "chef"], "role 'chef': must be one of inference, product"),
        (["--minutes", "0"], "1..180"),
        (["--out", "page.txt"], "must end in .html"),
        (["--out", "nowhere/page.html"], "there is no folder"),
    ],
)
def test_bad_input_is_refused_before_anything_is_asked(inside, args, told):
    done = run(*args, typed="")
    assert done.exit_code == 2
    assert told in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_help_has_an_example():
    shown = CliRunner().invoke(module.app, ["--help"]).output
    assert "llmlab interview --role product" in " ".join(shown.split())

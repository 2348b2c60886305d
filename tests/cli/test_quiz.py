"""`llmlab quiz` with answers from a pipe: what is kept, what is shown, what is not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from llmlab.check import library
from llmlab.check.choose import options_for
from llmlab.check.store import Store
from llmlab.cli import quiz as module

LLMLAB = [sys.executable, "-m", "llmlab.cli.main"]


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("JUPYTERHUB_USER", "LLMLAB_ITEMS")}
    return {**kept, "LLMLAB_DATA_DIR": str(tmp_path / "data"), "NO_COLOR": "1", "COLUMNS": "80"}


def llmlab(home: dict[str, str], *args: str, typed: str = ""):
    return CliRunner().invoke(module.app, list(args), input=typed, env=home)


def events(home: dict[str, str], kind: str) -> list:
    store = Store(Path(home["LLMLAB_DATA_DIR"]) / "progress.db")
    found = list(store.events(kind))
    store.close()
    return found


def letter(question: str, correct: bool) -> str:
    shown = options_for(library.find_question(question))
    return "abcdefghij"[next(i for i, o in enumerate(shown) if o.correct == correct)]


def test_a_wrong_then_a_right_answer_are_kept_and_answers_come_only_when_asked_for(home):
    wrong, right = letter("B13.earns-a-point", False), letter("B13.earns-a-point", True)
    typed = "\n".join([wrong, "3", right, "f", "", ""])
    done = llmlab(home, "--topic", "B13", "--count", "1", typed=typed)
    assert done.exit_code == 0, done.stderr
    question = library.find_question("B13.earns-a-point")
    before, _, after = done.stdout.partition("✓ correct")
    assert question.short not in before
    assert "✗ incorrect" in before
    assert question.short in after
    assert "a wrong result with visible reasoning" in " ".join(after.split())
    assert [e.data["state"] for e in events(home, "attempt")] == ["incorrect", "correct"]
    assert [e.data["level"] for e in events(home, "confidence")] == ["confident"]
    assert "0 of 1 right at the first try" in done.stdout


def test_what_was_missed_comes_first_the_next_day(home, tmp_path):
    typed = f"{letter('B5.choose', False)}\n\n\n\n"
    llmlab(home, "--topic", "B5", "--count", "1", typed=typed)
    store = Store(Path(home["LLMLAB_DATA_DIR"]) / "progress.db")
    store.export_jsonl(tmp_path / "day.jsonl")
    (event,) = store.events("attempt")
    assert event.item in {q.id for q in library.questions().values() if "B5" in q.covers}
    store.close()
    older = (tmp_path / "day.jsonl").read_text().replace(event.time[:10], "2020-01-02")
    (tmp_path / "old.jsonl").write_text(older)
    home = {**home, "LLMLAB_DATA_DIR": str(tmp_path / "later")}
    store = Store(tmp_path / "later" / "progress.db")
    store.import_jsonl(tmp_path / "old.jsonl")
    store.close()
    listed = json.loads(llmlab(home, "--count", "3", "--json").stdout)["questions"]
    assert listed[0]["id"] == event.item
    assert listed[0]["missed"] is True


def test_the_list_is_json_alone_and_holds_no_answers(home):
    done = llmlab(home, "--level", "L4", "--count", "50", "--json")
    rows = json.loads(done.stdout)["questions"]
    assert rows
    assert all(row["level"] == "L4" for row in rows)
    for row in rows:
        question = library.find_question(row["id"])
        assert question.short not in done.stdout
        assert not any(o.why in done.stdout for o in getattr(question, "options", []))


def test_every_screen_fits_80_columns_and_has_no_colour_codes(home):
    done = llmlab(home, "--count", "200", typed="s\n" * 400)
    assert done.exit_code == 0
    assert "\x1b" not in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert done.stdout.count(f" of {len(library.questions())} · ") == len(library.questions())


def test_prose_shows_its_rubric_only_after_it_was_committed(home):
    typed = "TPOT.\nA long answer is mostly gaps.\n\n2\nan assumption\nan observation\n1 2\n\n"
    done = llmlab(home, "--topic", "follow-ups", "--level", "L1", typed=typed)
    before, mark, after = done.stdout.partition("Committed, sha256")
    assert mark
    assert "Names TPOT" not in before
    assert "Names TPOT" in after
    assert "2 of 4 points, 50%" in after
    (event,) = events(home, "prose")
    assert event.data["text"] == "TPOT.\nA long answer is mostly gaps."
    assert events(home, "confidence")[-1].data["observation"] == "an observation"


def test_a_sign_that_only_looks_like_a_number_is_asked_for_again(home):
    typed = f"{letter('B13.earns-a-point', True)}\n²\n3\n\n"
    done = llmlab(home, "--topic", "B13", "--count", "1", typed=typed)
    assert done.exit_code == 0, done.output
    assert "Type 1 to 3" in done.stdout
    assert [e.data["level"] for e in events(home, "confidence")] == ["confident"]


def test_words_without_end_are_refused_and_asked_for_again(home):
    typed = f"{'x' * 20_001}\n\nTPOT.\n\n2\n\n\n²\n1\n\n"
    done = llmlab(home, "--topic", "follow-ups", "--level", "L1", typed=typed)
    assert done.exit_code == 0, done.output
    assert "at most 20,000 characters" in done.stdout
    (event,) = events(home, "prose")
    assert event.data["text"] == "TPOT."
    assert "1 of 4 points, 25%" in done.stdout


@pytest.mark.slow
def test_input_that_ends_early_keeps_what_was_answered(home):
    typed = letter("B13.earns-a-point", True) + "\n"
    done = subprocess.run(
        [*LLMLAB, "quiz", "--topic", "B13"],
        input=typed, capture_output=True, text=True, env=home, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0
    assert "1 of 1 right" in done.stdout
    assert len(events(home, "attempt")) == 1


@pytest.mark.slow
def test_ctrl_c_ends_with_130_without_a_traceback_and_keeps_what_was_answered(home):
    running = subprocess.Popen(
        [*LLMLAB, "quiz", "--topic", "B13"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=home,
    )
    running.stdin.write(letter("B13.earns-a-point", True) + "\n")
    running.stdin.flush()
    limit = time.monotonic() + 30
    while time.monotonic() < limit and not (
        (Path(home["LLMLAB_DATA_DIR"]) / "progress.db").exists() and events(home, "attempt")
    ):
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=30)
    assert running.returncode == 130
    assert "Traceback" not in out + err
    assert "1 of 1 right" in out
    assert len(events(home, "attempt")) == 1


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--topic", "tea"], "topic 'tea': must be one of"),
        (["--level", "9"], "L1, L2, L3, L4"),
        (["--role", "chef"], "inference, product"),
        (["--topic", "opening", "--level", "L4"], "no question fits"),
    ],
)
def test_a_bad_option_is_one_sentence_and_status_2(home, args, told):
    done = llmlab(home, *args)
    assert done.exit_code == 2
    assert told in done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1


def test_hints_and_unreadable_answers_are_told_and_the_question_stays(home):
    typed = "h\nbanana\n8 parsecs\n28 ms\n\n\n"
    done = llmlab(home, "--topic", "B6", "--level", "L1", typed=typed)
    assert "Hint 1 of 1" in done.stdout
    assert "is no number" in done.stdout
    assert "parsecs" in done.stdout
    assert "✓ correct (read as 28 ms)" in done.stdout


def test_help_has_an_example():
    shown = CliRunner().invoke(module.app, ["--help"]).output
    assert "llmlab quiz --topic traces" in " ".join(shown.split())
    assert "FSRS" in shown

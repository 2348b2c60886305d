"""What a terminal of 80 columns and 24 lines shows, and what typing into it does."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from llmlab.check.store import Store
from llmlab.cli import interview, quiz

pty = pytest.importorskip("pty", reason="a Unix terminal")
LLMLAB = [sys.executable, "-m", "llmlab.cli.main"]


class Terminal:
    """A command in a terminal; `until(words)` reads what it says."""

    def __init__(self, place: Path, *args: str) -> None:
        import fcntl
        import struct
        import termios

        self.here, there = pty.openpty()
        fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        plain = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        plain |= {"LLMLAB_DATA_DIR": str(place / "data"), "NO_COLOR": "1", "TERM": "xterm"}
        self.process = subprocess.Popen(
            [*LLMLAB, *args], stdin=there, stdout=there, stderr=there, cwd=place, env=plain,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(there)
        self.said = ""

    def until(self, words: str, seconds: float = 60) -> str:
        """What was said since the last call, up to these words."""
        end, start = time.monotonic() + seconds, len(self.said)
        while words not in self.said[start:] and time.monotonic() < end:
            if select.select([self.here], [], [], 0.2)[0]:
                try:
                    self.said += os.read(self.here, 65536).decode()
                except OSError:  # Linux's way to say that nobody is at the other end
                    break
        assert words in self.said[start:], self.said[-2000:]
        return self.said[start:]

    def type(self, text: str) -> None:
        os.write(self.here, text.encode())

    def interrupt(self, words: str) -> None:
        """Ctrl-C until these words; just before Python waits for a line it does nothing."""
        for _ in range(10):
            self.type("\x03")
            try:
                self.until(words, 6)
            except (AssertionError, OSError):
                continue
            return

    def end(self) -> int:
        status = self.process.wait(30)
        os.close(self.here)
        return status


def on_screen(said: str) -> list[str]:
    """Lines as they stand on the screen, signs for the terminal taken out."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said).replace("\r", "").split("\n")


@pytest.mark.slow
def test_a_quiz_fits_80_columns_without_colour_and_ctrl_c_keeps_the_answer(tmp_path: Path) -> None:
    shown = Terminal(tmp_path, "quiz", "--topic", "C9", "--count", "2")
    shown.until("Answer: ")
    shown.type("a\r")
    shown.until("confident: ")
    shown.type("2\r")
    shown.until(": ")
    shown.interrupt("All answers are kept.")
    assert shown.end() == 130
    assert max(map(len, on_screen(shown.said))) <= 80
    assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|4[0-7]|9[0-7])m", shown.said), "NO_COLOR"
    store = Store(tmp_path / "data" / "progress.db")
    assert len(list(store.events("attempt"))) == 1
    store.close()


@pytest.mark.slow
def test_an_answer_of_two_paragraphs_may_be_pasted(tmp_path: Path) -> None:
    shown = Terminal(tmp_path, "interview", "--minutes", "5")
    shown.until("> ")
    shown.type("Prefill reads the prompt.\r\rDecode writes a token per step.\r")
    time.sleep(0.5)
    shown.type("\r")
    shown.until("confident: ")
    shown.interrupt("wrote interview.md")
    assert shown.end() == 130
    store = Store(tmp_path / "data" / "progress.db")
    (kept,) = store.events("prose")
    store.close()
    assert "Decode writes" in str(kept.data)


@pytest.mark.slow
def test_a_long_error_breaks_between_words(tmp_path: Path) -> None:
    shown = Terminal(tmp_path, "quiz", "--topic", "nix")
    said = shown.until("B5")
    assert shown.end() == 2
    for topic in ("disaggregation", "wrong-answers"):
        assert any(topic in line for line in on_screen(said))


def test_an_error_shows_brackets_as_they_are(tmp_path: Path) -> None:
    from llmlab.cli import labs

    done = CliRunner().invoke(labs.app, ["--work", str(tmp_path), "--reset", "[red]x[/red]"])
    assert done.exit_code == 2
    assert "no lab '[red]x[/red]'" in done.output


def test_a_path_with_brackets_is_shown_as_it_is(tmp_path: Path) -> None:
    from llmlab.cli import labs, simulate

    work = tmp_path / "[red]work[/red]"
    done = CliRunner().invoke(labs.app, ["--work", str(work), "--reset", "01"])
    assert f"restored {work}" in done.output
    saved = tmp_path / "[final].jsonl"
    options = ["--users", "1", "--output-tokens", "2", "--out", str(saved)]
    done = CliRunner().invoke(simulate.app, options)
    assert "[final].jsonl" in done.stderr.replace("\n", "")


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    from llmlab.cli import labs

    (tmp_path / "file").touch()
    for options in (["--release", "file/labs.zip"], ["--work", "file/x", "--reset", "01"]):
        options = [str(tmp_path / o) if o.startswith("file") else o for o in options]
        done = CliRunner().invoke(labs.app, options)
        assert done.exit_code == 2, done.output
        assert "cannot write" in done.stderr


def test_a_second_interview_leaves_the_first_report(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LLMLAB_DATA_DIR", str(tmp_path / "data"))
    for _ in range(2):
        assert CliRunner().invoke(interview.app, ["--minutes", "5"], input="q\n").exit_code == 0
    (tmp_path / "interview-2.html").write_text("mine")
    done = CliRunner().invoke(interview.app, ["--minutes", "5"], input="q\n")
    assert "wrote interview-3.html" in done.output
    assert (tmp_path / "interview-2.html").read_text() == "mine"


def test_a_quiz_left_at_once_counts_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("LLMLAB_DATA_DIR", str(tmp_path / "data"))
    done = CliRunner().invoke(quiz.app, ["--count", "1"], input="q\n")
    assert "No question was answered." in done.output
    assert "0 of 0" not in done.output

"""What a lab prints of a question: all that is needed to answer it, in lines that fit a page."""

from __future__ import annotations

import pytest

from llmlab.check import find_item, library
from llmlab.check.present import ask
from llmlab.check.student import current_student
from llmlab.viz.exercise import COLUMNS, attempt, print_prompt, print_question


def test_a_question_about_a_report_shows_the_report(capsys):
    print_question("B3.silent-drop")
    said = capsys.readouterr().out
    assert "completed     992      811" in said
    assert "  a) " in said


@pytest.mark.parametrize("question", library.questions().values(), ids=lambda q: q.id)
def test_every_question_is_whole_and_fits_the_page(question, capsys):
    print_question(question.id)
    said = capsys.readouterr().out
    asked = ask(question, current_student())
    words = said.split()
    for text in (asked.prompt, asked.report, *(text for _, text in asked.choices)):
        assert all(word in words for word in text.split())
    if asked.table is None and not asked.report:
        assert max(map(len, said.splitlines())) <= COLUMNS


def test_an_item_is_asked_in_lines_that_fit_a_page(capsys):
    print_prompt(find_item("C7.kv-prompt"))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= COLUMNS


def test_a_stub_gives_the_library_s_own_and_says_so(capsys):
    def stub():
        raise NotImplementedError

    assert attempt("mine", stub, instead=lambda: 7) == 7
    assert "not answered yet" in capsys.readouterr().out
    assert attempt("mine", lambda: 3, instead=lambda: 7) == 3

"""What a lab prints of a question: all that is needed to answer it, in lines that fit a page."""

from __future__ import annotations

from llmlab.check import find_item, library
from llmlab.check.present import ask
from llmlab.check.student import current_student
from llmlab.viz.exercise import COLUMNS, attempt, print_prompt, print_question


def test_a_question_about_a_report_shows_the_report(capsys):
    print_question("B3.silent-drop")
    said = capsys.readouterr().out
    assert "completed     992      811" in said
    assert "  a) " in said


def test_every_question_is_whole_and_fits_the_page(capsys):
    for question in library.questions().values():
        print_question(question.id)
        said = capsys.readouterr().out
        asked = ask(question, current_student())
        for text in (asked.prompt, asked.report, *(text for _, text in asked.choices)):
            assert set(text.split()) <= set(said.split()), question.id
        if asked.table is None and not asked.report:
            assert max(map(len, said.splitlines())) <= COLUMNS, question.id


def test_an_item_is_asked_in_lines_that_fit_a_page(capsys):
    print_prompt(find_item("C7.kv-prompt"))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= COLUMNS


def stub():
    raise NotImplementedError


def test_a_stub_or_a_broken_answer_gives_the_library_s_own_and_says_so(capsys):
    for mine, said in (
        (stub, "not answered yet"),
        (lambda: 1 / 0, "ZeroDivisionError"),
        (lambda: None, "returns nothing yet"),
        (lambda: ..., "returns nothing yet"),
    ):
        assert attempt("knee", mine, instead=lambda: 7) == 7
        assert said in capsys.readouterr().out


def test_an_answer_is_used_also_if_it_is_zero(capsys):
    for answer in (3, 0):
        assert attempt("knee", lambda found=answer: found, instead=lambda: 7) == answer
        assert "yours is used" in capsys.readouterr().out

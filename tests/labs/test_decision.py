"""Text first, rubric after; and the tuning exercise names the limit that fails."""

from __future__ import annotations

import pytest

from llmlab.check.result import Result
from llmlab.check.store import Store
from llmlab.labs.decision import score, write
from llmlab.labs.tuning import alternating, check_limit, mixed
from llmlab.viz.figures.itl_strip import gaps_by_class

ID = "B10.decision"
RUBRIC = ["result", "reasoning", "failure", "check"]


@pytest.fixture
def store():
    return Store(None)


def test_no_rubric_before_the_text(store):
    for blank in (..., None, "", "  \n"):
        shown = write(ID, blank, store=store)
        assert isinstance(shown, Result)
        assert shown.state == "not answered yet"
        assert "limits" not in repr(shown)
        assert score(shown, RUBRIC, store=store).state == "not answered yet"
    assert list(store.events()) == []


def test_the_text_is_kept_before_the_rubric_is_shown(store):
    shown = write(ID, "Ship the chunks.", store=store)
    assert next(iter(store.events("prose", ID))).data["text"] == "Ship the chunks."
    assert all(name in repr(shown) for name in RUBRIC)


def test_the_same_text_is_kept_once_a_changed_one_beside_it(store):
    for text in ("One.", "One.", " One. ", "Two."):
        write(ID, text, store=store)
    assert [e.data["text"] for e in store.events("prose", ID)] == ["One.", "Two."]


def test_the_writer_scores_by_the_rubric_and_a_criterion_that_is_none_is_told_so(store):
    written = write(ID, "Ship it.", store=store)
    for met, state in (
        (RUBRIC, "correct"),
        (["result"], "partial"),
        ([], "incorrect"),
        (..., "not answered yet"),
        (["style"], "error"),
        ("result", "error"),
        (3, "error"),
    ):
        assert score(written, met, store=store).state == state, met


def test_a_question_that_is_not_prose_is_refused(store):
    with pytest.raises(ValueError, match="in words"):
        write("B10.not-shown", "text", store=store)


def test_a_token_limit_is_judged_by_what_it_does(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMLAB_DATA_DIR", str(tmp_path))
    for limit, state, said in (
        (..., "not answered yet", ""),
        (True, "error", "whole number"),
        (4, "error", "whole number"),
        (1024, "correct", "every limit holds"),
        (2048, "incorrect", "chat gap p95"),
        (8192, "incorrect", "p99"),
        (128, "incorrect", "TTFT"),
    ):
        result = check_limit(limit, requests=100)
        assert result.state == state, limit
        assert said in result.message


def test_the_illustrated_traces_have_the_gaps_of_their_steps():
    by_turns = alternating([0, 8, 28, 36, 56], decodes=4, chunk=512)
    gaps = [gap for _, gap in gaps_by_class(by_turns)["chat"]]
    assert gaps == [28.0] * 4
    assert [s.prefill_tokens for s in by_turns.steps] == [0, 512, 0, 512]
    together = mixed([0, 24, 48], decodes=4, chunk=512)
    assert [gap for _, gap in gaps_by_class(together)["chat"]] == [24.0] * 4
    assert [(s.decode_tokens, s.prefill_tokens) for s in together.steps] == [(4, 512)] * 2

"""Stop strings: never shown, never in part, and nothing else is swallowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmlab.engine.text import TextStream, held_length
from llmlab.engine.tokenizer import ByteDetokenizer


def text_of(pieces, stop=(), *, include=False, flush=True):
    """Deltas of a stream whose tokens are these pieces, and the stop string found."""
    stream = TextStream(
        ByteDetokenizer([piece.encode() for piece in pieces].__getitem__),
        stop,
        include_stop=include,
    )
    deltas = []
    for i in range(len(pieces)):
        deltas.append(stream.push(i))
        if stream.stopped is not None:
            return deltas, stream.stopped
    if flush:
        deltas.append(stream.flush())
    return deltas, None


PIECES = ["The quick br", "own", " fo", "x jumps"]


def test_a_stop_string_over_token_borders_is_never_shown():
    deltas, stopped = text_of(PIECES, ["own fox"])
    assert deltas == ["The quick br", "", "", ""]
    assert stopped == "own fox"


def test_a_stop_string_is_shown_whole_when_asked():
    deltas, stopped = text_of(PIECES, ["own fox"], include=True)
    assert "".join(deltas) == "The quick brown fox"
    assert stopped == "own fox"


def test_what_was_held_is_released_when_it_does_not_match():
    deltas, stopped = text_of([" br", "own", " fo", "r"], ["own fox"])
    assert deltas == [" br", "", "", "own for", ""]
    assert stopped is None


def test_a_held_tail_is_released_at_the_end():
    assert text_of([" br", "own fo"], ["own fox"])[0] == [" br", "", "own fo"]


def test_the_first_of_several_stop_strings_wins_then_the_longest():
    assert text_of(["abcde"], ["de", "bc"])[1] == "bc"
    assert text_of(["abcde"], ["b", "bcd"])[1] == "bcd"


def test_text_before_min_tokens_is_out_of_reach():
    stream = TextStream(ByteDetokenizer([b"a", b"b"].__getitem__), ["ab", "aa"])
    assert stream.push(0, may_stop=False) == "a"
    assert stream.push(1) == "b"
    assert stream.stopped is None


@pytest.mark.parametrize(("text", "held"), [("xa", 1), ("xab", 2), ("xabc", 0), ("b", 0), ("", 0)])
def test_held_length(text, held):
    assert held_length(text, ["abcd"] if text != "xabc" else ["abx"]) == held


letters = st.text("ab🙂", max_size=4)


@given(
    st.lists(letters, max_size=12), st.lists(st.text("ab🙂", min_size=1, max_size=4), max_size=3)
)
def test_any_cutting_gives_the_text_before_the_first_stop_and_holds_back_little(pieces, stop):
    whole = "".join(pieces)
    deltas, stopped = text_of(pieces, stop)
    ends = [(whole.find(s) + len(s), s) for s in stop if s in whole]
    if not ends:
        assert stopped is None
        assert "".join(deltas) == whole
    else:
        assert stopped is not None
        assert whole.startswith("".join(deltas) + stopped)
        assert not any(s in "".join(deltas) for s in stop)
    longest = max(map(len, stop), default=1)
    shown = 0
    for count, delta in enumerate(deltas[: len(pieces)], 1):
        shown += len(delta)
        if stopped is None:
            assert len("".join(pieces[:count])) - shown <= longest - 1

"""One chat and its guests: who comes when, what waits, and which of the four numbers is told."""

from __future__ import annotations

import pytest

from llmlab.engine import load_model
from llmlab.labs.company import Guest, clock, output_rate, serve, show_clock, show_company
from llmlab.measure.per_request import request_metrics


@pytest.fixture(scope="module")
def model():
    return load_model("tiny")


def text(shown):
    return shown._repr_mimebundle_()["text/plain"]


def test_a_guest_s_whole_prompt_lies_between_two_tokens_of_the_chat(model):
    trace = serve(model, 12, [Guest(5, 100, 1)])
    chat, guest = trace.requests.values()
    assert (len(chat.events), len(guest.events)) == (12, 1)
    assert chat.events[4].t <= guest.t_send
    assert guest.events[0].t <= chat.events[6].t
    assert max(step.prefill_tokens for step in trace.steps) == 100
    assert "joined" in text(show_company({"joined": trace}))


def test_with_one_seat_the_second_waits_and_the_parts_add_up(model):
    trace = serve(model, 8, [Guest(0, 40, 8)], max_num_seqs=1)
    first, second = trace.requests.values()
    assert second.t_queued < first.events[0].t
    assert second.t_first_scheduled >= first.events[-1].t
    chat, guest = map(request_metrics, (first, second))
    for m in (chat, guest):
        ttft, e2e = clock(m.queue, m.preprocessing, m.prefill, m.n, m.tpot)
        assert ttft == pytest.approx(m.ttft)
        assert e2e == pytest.approx(m.e2e)
    assert len(text(show_clock(trace)).splitlines()) == 4


def test_a_guest_that_would_come_after_the_chat_s_end_still_comes(model):
    trace = serve(model, 3, [Guest(99, 10, 2)])
    assert [len(r.events) for r in trace.requests.values()] == [3, 2]
    seconds = (trace.requests["guest 1"].events[-1].t - trace.requests["chat"].t_send) / 1e9
    assert output_rate(trace) == pytest.approx(5 / seconds)


def test_one_token_alone_has_no_gaps_and_a_dash_for_each(model):
    trace = serve(model, 1)
    (row,) = text(show_company({"alone": trace})).splitlines()[2:]
    assert row.split()[2:4] == ["–", "–"]
    assert text(show_clock(trace)).splitlines()[-1].split()[5:7] == ["0", "–"]


def test_the_curriculum_s_clock():
    assert clock(120, 30, 250, 50, 20) == (400, 1380)
    assert clock(120, 30, 180, 50, 28) == (330, 1702)
    assert clock(100, 40, 160, 31, 25) == (300, 1050)

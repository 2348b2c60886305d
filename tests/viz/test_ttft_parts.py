"""A client's TTFT in parts: they sum to it, whatever the two clocks say."""

from __future__ import annotations

import pytest

from llmlab.trace import RequestRecord, TokenEvent
from llmlab.viz.figures.ttft_parts import PARTS_HEAD, parts_figure, parts_rows, ttft_parts

MS = 1_000_000


def client(ttft: int) -> RequestRecord:
    sent = 5 * MS
    return RequestRecord("a", t_send=sent, events=[TokenEvent(sent + ttft * MS)])


def test_the_parts_sum_to_the_clients_ttft_under_another_clock(trace):
    parts = ttft_parts("a", client(100), trace.requests["a"])
    assert (parts.outside, parts.front, parts.queue, parts.prefill) == (48, 2, 10, 40)
    assert parts.ttft == 100


def test_a_request_without_a_first_token_is_refused(trace):
    with pytest.raises(ValueError, match="no first token"):
        ttft_parts("a", RequestRecord("a", t_send=0, outcome="failed"), trace.requests["a"])


def test_figure_and_table_say_the_same(trace):
    rows = [ttft_parts("near", client(60), trace.requests["a"])]
    figure = parts_figure(rows)
    assert [list(bar.x) for bar in figure.data] == [[8], [2], [10], [40]]
    assert parts_rows(rows) == [["near", "60.0", "8.0", "2.0", "10.0", "40.0"]]
    assert len(PARTS_HEAD) == len(parts_rows(rows)[0])
    assert parts_figure([]).layout.title.text == "No request yet"

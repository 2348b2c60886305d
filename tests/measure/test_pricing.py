"""A bill is tokens times rates; cached prompt tokens are charged once, at their own rate."""

from __future__ import annotations

from decimal import Decimal

import pytest

from llmlab.measure.pricing import Prices, bill
from llmlab.trace import RequestRecord, TokenEvent

PRICES = Prices.parse("input=0.15,cached_input=0.075,output=0.60")


def record(name, prompt=1_000_000, cached=0, n=1_000_000, outcome="completed"):
    return RequestRecord(
        name, prompt_tokens=prompt, cached_tokens=cached, completion_tokens=n, outcome=outcome
    )


def test_a_million_of_each_costs_the_listed_price():
    total = bill([record("a", cached=400_000)], PRICES)
    assert total.input_tokens == 600_000
    assert total.cached_tokens == 400_000
    assert total.input_charge == Decimal("0.09")
    assert total.cached_charge == Decimal("0.03")
    assert total.output_charge == Decimal("0.60")
    assert total.total == Decimal("0.72")


def test_sums_of_money_are_exact():
    many = [record(str(i), prompt=1, n=0) for i in range(10)]
    assert bill(many, Prices.parse("input=0.1,output=1")).total == Decimal("0.000001")


def test_without_a_cached_price_cached_tokens_cost_what_others_cost():
    plain = Prices.parse("input=2,output=0")
    assert bill([record("a", cached=1_000_000, n=0)], plain).total == Decimal(2)


def test_refused_requests_cost_nothing_and_unknown_counts_are_said():
    refused = record("a", outcome="rejected")
    unknown = RequestRecord("b", outcome="failed", events=[TokenEvent(1, None)])
    total = bill([refused, unknown], PRICES)
    assert (total.total, total.unbilled) == (0, 1)


def test_a_whole_answer_of_unknown_length_is_not_free():
    whole = RequestRecord("a", prompt_tokens=1_000_000, outcome="completed", t_end=9)
    total = bill([whole], PRICES)
    assert (total.total, total.unbilled) == (0, 1)


def test_a_cancelled_answer_is_charged_for_what_was_sent():
    left = RequestRecord("a", prompt_tokens=0, outcome="cancelled", events=[TokenEvent(1, 5)])
    assert bill([left], PRICES).output_tokens == 5


def test_more_cached_than_prompt_is_refused():
    with pytest.raises(ValueError, match="5 cached of 3"):
        bill([record("a", prompt=3, cached=5)], PRICES)


def test_a_price_list_that_makes_no_sense_is_refused():
    bad = ("input=a,output=1", "input=-1,output=1", "input=nan,output=1", "input=1e999,output=1")
    for text in ("", "input=1", "x=1", *bad):
        with pytest.raises(ValueError, match=r"prices|Prices"):
            Prices.parse(text)

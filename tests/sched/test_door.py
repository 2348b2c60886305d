"""What is refused at the door, in which words, and that it changes nothing."""

from __future__ import annotations

from itertools import product

import pytest

from llmlab.config import EngineConfig
from llmlab.sched import Chunked, Request, SamplingParams
from tests.sched.lab import VOCAB, lab, make


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (make("A", []), r"Request\.prompt_token_ids = \[\]: must be a list of at least one token"),
        (make("A", [1, VOCAB]), r"prompt_token_ids\[1\] = 97: must be a whole number in 0\.\.96"),
        (make("A", [-1]), r"prompt_token_ids\[0\] = -1: must be"),
        (make("A", [1.0]), r"prompt_token_ids\[0\] = 1\.0: must be"),
        (make("A", [True]), r"prompt_token_ids\[0\] = True: must be"),
        (make("A", [float("nan")]), r"prompt_token_ids\[0\] = nan: must be"),
        (make("A", ["1"]), r"prompt_token_ids\[0\] = '1': must be"),
        (make("A", [10**30]), r"prompt_token_ids\[0\] = 10+: must be"),
        (Request("A", (1, 2)), r"prompt_token_ids = a tuple: must be a list"),  # type: ignore
        (Request("A", "text"), r"prompt_token_ids = a str: must be a list"),  # type: ignore
        (make("A", 32), r"32 tokens: must be at most 31 tokens \(max_model_len = 32\)"),
        (make("A", 10**6), r"1000000 tokens: must be at most 31"),
        (make("A", 20, 13), r"max_tokens = 13: must be at most 12 after a prompt of 20 tokens"),
        (make("A", 20, 2**31 - 1), r"max_tokens = 2147483647: must be at most 12"),
        (make("A", 20, min_tokens=13), r"min_tokens = 13: must be at most 12"),
        (make("A", 4, 2, stop_token_ids=(99,)), r"stop_token_ids = 99: must be"),
        (make("A", 4, 2, eos=99), r"eos_token_id = 99: must be"),
        (make("", 4, 2), r"Request\.request_id = '': must be a non-empty string"),
        (make("A", 4, 2, priority=1.5), r"Request\.priority = 1\.5: must be a whole number"),
        (Request("A", [1], {"max_tokens": 1}), r"Request\.params = .*: must be SamplingParams"),  # type: ignore
        ("A", r"request = 'A': must be a Request"),
    ],
)
def test_a_bad_request_is_refused_and_the_others_go_on(request_: object, words: str) -> None:
    bench = lab(B=4, N=100, T=8, L=32).add(make("good", 4, 3))
    bench.step()
    with pytest.raises(ValueError, match=words):
        bench.scheduler.add(request_)  # type: ignore[arg-type]
    assert (bench.scheduler.num_waiting, bench.scheduler.num_running) == (0, 1)
    bench.scheduler.check_integrity()
    bench.run()


def test_an_id_is_used_once_at_a_time() -> None:
    bench = lab(B=4, N=10, T=8).add(make("A", 4, 1))
    with pytest.raises(ValueError, match=r"request_id = 'A': must be unused"):
        bench.scheduler.add(make("A", 4, 1))
    bench.run().add(make("A", 4, 1)).run()


def test_a_request_runs_only_once() -> None:
    bench = lab(B=4, N=10, T=8).add(request := make("A", 4, 1)).run()
    with pytest.raises(ValueError, match=r"status = 'finished': must be that of a request never"):
        bench.scheduler.add(request)


def test_a_refused_request_can_be_changed_and_come_back() -> None:
    bench = lab(B=4, N=4, T=8)
    request = make("A", 4, 14)
    with pytest.raises(ValueError, match="at most 13"):
        bench.scheduler.add(request)
    request.params = SamplingParams(max_tokens=13)
    bench.add(request).run()


def test_without_max_tokens_a_request_writes_as_much_as_fits() -> None:
    """min(L - P, N * B - P + 1)"""
    table = [(4, 100, 32, 28), (31, 100, 32, 1), (4, 4, 32, 13), (16, 4, 32, 1), (16, 4, 17, 1)]
    for prompt, blocks, length, expected in table:
        lab(B=4, N=blocks, T=8, L=length).add(request := make("A", prompt)).run()
        assert request.max_tokens == len(request.output_token_ids) == expected


def test_what_is_accepted_ends_and_what_is_refused_could_not() -> None:
    """Feasible: ceil((P + M - 1) / B) <= N and P + M <= L."""
    for prompt, tokens in product(range(1, 13), range(1, 9)):
        bench, request = lab(B=3, N=4, T=5, L=15), make("A", prompt, tokens)
        feasible = -(-(prompt + tokens - 1) // 3) <= 4 and prompt + tokens <= 15
        if feasible:
            bench.add(request).run()
        else:
            with pytest.raises(ValueError, match="must be at most"):
                bench.add(request)


def test_a_bad_vocabulary_is_refused() -> None:
    for value in (0, -1, 1.5, "many"):
        with pytest.raises(ValueError, match=f"vocab_size = {value!r}: must be"):
            Chunked(EngineConfig(), vocab_size=value)  # type: ignore[arg-type]


def test_a_bad_order_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Chunked\.order = 'random': must be 'decode_first'"):
        Chunked(EngineConfig(), order="random")  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "repetition_penalty"])
def test_impossible_sampling_parameters_are_refused(field: str) -> None:
    for value in (float("nan"), float("inf"), -1.0, 10**400, "hot", None, True):
        with pytest.raises(ValueError, match=rf"SamplingParams\.{field} = {value!r}: must be"):
            SamplingParams(**{field: value})


def test_stops_that_are_no_list_are_refused() -> None:
    for field, value in (("stop", 5), ("stop", ""), ("stop", [5]), ("stop_token_ids", 5)):
        with pytest.raises(ValueError, match=rf"SamplingParams\.{field} = .*: must be a"):
            SamplingParams(**{field: value})


def test_stops_may_be_one_string_a_list_or_nothing() -> None:
    for given, kept in (
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        (None, ()),
        (iter("ab"), ("a", "b")),
    ):
        assert SamplingParams(stop=given).stop == kept
    assert SamplingParams(stop_token_ids=None).stop_token_ids == ()


def test_min_tokens_beyond_max_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match=r"min_tokens = 5: must be at most max_tokens \(4\)"):
        SamplingParams(max_tokens=4, min_tokens=5)

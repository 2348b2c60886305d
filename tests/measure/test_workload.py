"""Laws of a workload: the same for the same seed, exact shares, errors that say what is allowed."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmlab.measure.rates import send_rate
from llmlab.measure.workload import apportion, load_workload, names, parse_workload

CHAT = {"name": "chat", "prompt_tokens": 64, "output_tokens": 32}
DOCUMENT = {"name": "document", "prompt_tokens": 1024, "output_tokens": 16}


def workload(arrivals=None, *, n=100, classes=(CHAT, DOCUMENT), **more):
    data = {
        "name": "w",
        "classes": list(classes),
        "arrivals": arrivals or {"kind": "poisson", "request_rate": 4},
        "stop": {"num_prompts": n} if n else {},
    }
    return parse_workload(data | more)


def seconds(planned):
    return np.array([request.t_sched_ns for request in planned]) / 1e9


def test_the_shipped_workloads_are_those_of_the_course():
    assert set(names()) >= {
        "chat_and_documents",
        "chat_and_documents_cpu",
        "decode_only",
        "burst",
    }
    big = load_workload("chat_and_documents").requests()
    kinds = Counter((r.class_name, r.prompt_tokens, r.output_tokens) for r in big)
    assert kinds == {("chat", 256, 128): 200, ("document", 8192, 64): 200}
    assert np.mean([r.prompt_tokens for r in big]) == 4224
    small = load_workload("chat_and_documents_cpu")
    kinds = Counter((r.class_name, r.prompt_tokens, r.output_tokens) for r in small.requests())
    assert kinds == {("chat", 64, 32): 12, ("document", 1024, 16): 12}
    assert small.scaled_from == "chat_and_documents"
    assert "SCALED" in small.description


def test_the_limits_of_the_course_come_with_the_classes():
    limits = load_workload("chat_and_documents").limits
    assert (limits["chat"].ttft_ms, limits["chat"].gap_ms) == (700, 50)
    assert (limits["document"].ttft_ms, limits["document"].gap_ms) == (2000, None)


def test_a_burst_moves_send_times_and_nothing_else():
    calm = load_workload("chat_and_documents").requests()
    burst = load_workload("burst").requests()
    for field in ("class_name", "prompt_tokens", "output_tokens"):
        assert [getattr(r, field) for r in calm] == [getattr(r, field) for r in burst]
    assert np.sum((seconds(burst) >= 20) & (seconds(burst) <= 21)) >= 100
    assert np.sum((seconds(calm) >= 20) & (seconds(calm) <= 21)) < 20
    assert calm[-1].t_sched_ns == burst[-1].t_sched_ns


@pytest.mark.parametrize("name", names())
def test_the_same_seed_gives_the_same_requests_and_another_seed_others(name):
    one = load_workload(name)
    assert one.requests() == load_workload(name).requests()
    assert one.with_(seed=0) == one
    other = one.with_(seed=1).requests()
    first, same = one.requests()[0], other[0]
    assert first.prompt_token_ids(1000) == one.requests()[0].prompt_token_ids(1000)
    if first.prompt_tokens == same.prompt_tokens > 1:
        assert first.prompt_token_ids(1000) != same.prompt_token_ids(1000)
    if not one.closed_loop:
        assert list(seconds(one.requests())) != list(seconds(other))


def test_prompts_are_token_ids_of_the_vocabulary_and_differ_between_requests():
    a, b = workload(n=2, classes=[CHAT]).requests()
    ids = a.prompt_token_ids(7)
    assert len(ids) == 64
    assert set(ids) == set(range(7))
    assert ids != b.prompt_token_ids(7)
    with pytest.raises(ValueError, match=r"vocab_size = 0: must be a whole number >= 1"):
        a.prompt_token_ids(0)


def test_changing_the_rate_changes_no_length_and_no_class():
    classes = [CHAT | {"prompt_tokens": {"kind": "uniform", "low": 1, "high": 99}}, DOCUMENT]
    slow = workload({"kind": "poisson", "request_rate": 1}, classes=classes).requests()
    fast = workload({"kind": "constant", "request_rate": 9}, classes=classes).requests()
    assert [(r.class_name, r.prompt_tokens) for r in slow] == [
        (r.class_name, r.prompt_tokens) for r in fast
    ]


@given(
    n=st.integers(0, 500),
    shares=st.lists(st.floats(0.01, 100), min_size=1, max_size=6),
)
def test_shares_are_exact_up_to_rounding(n, shares):
    counts = apportion(n, shares)
    assert sum(counts) == n
    for count, share in zip(counts, shares, strict=True):
        assert abs(count - n * share / sum(shares)) < 1 + 1e-9


@given(n=st.integers(1, 200), seed=st.integers(0, 2**32))
def test_equal_shares_are_equal(n, seed):
    kinds = Counter(r.class_name for r in workload(n=2 * n, seed=seed).requests())
    assert kinds == {"chat": n, "document": n}


@given(
    rate=st.floats(0.1, 1000),
    burstiness=st.floats(0.2, 5),
    n=st.integers(2, 200),
    seed=st.integers(0, 1000),
)
def test_the_offered_rate_is_the_rate_asked_for(rate, burstiness, n, seed):
    arrivals = {"kind": "gamma", "request_rate": rate, "burstiness": burstiness}
    planned = workload(arrivals, n=n, seed=seed).requests()
    stamps = [r.t_sched_ns for r in planned]
    assert stamps == sorted(stamps)
    assert stamps[0] == 0
    assert len(planned) == n
    assert send_rate(stamps) == pytest.approx(rate, rel=1e-5)


def ramp(strategy, start, end, burstiness=1.0):
    rates = {"ramp_up_start_rps": start, "ramp_up_end_rps": end}
    return {"kind": "ramp_up", "ramp_up_strategy": strategy, "burstiness": burstiness, **rates}


@given(
    strategy=st.sampled_from(["linear", "exponential"]),
    start=st.floats(0.5, 20),
    growth=st.floats(1, 20),
    burstiness=st.floats(0.5, 5),
    n=st.integers(1, 200),
    seed=st.integers(0, 1000),
)
def test_a_ramp_divides_the_gaps_of_a_flat_one_by_a_rate_that_rises_from_start_to_end(
    strategy, start, growth, burstiness, n, seed
):
    arrivals = ramp(strategy, start, start * growth, burstiness)
    planned = workload(arrivals, n=n, seed=seed).requests()
    assert planned == workload(arrivals, n=n, seed=seed).requests()
    assert (planned[0].t_sched_ns, len(planned)) == (0, n)
    flat = np.diff(seconds(workload(ramp(strategy, 1, 1, burstiness), n=n, seed=seed).requests()))
    gaps = np.diff(seconds(planned))
    x = np.linspace(0, 1, n - 1)
    rate = start * (1 + (growth - 1) * x if strategy == "linear" else growth**x)
    assert gaps * rate == pytest.approx(flat, abs=1e-6)
    assert n <= 2 or rate[-1] == pytest.approx(start * growth)


@pytest.mark.parametrize(("strategy", "middle"), [("linear", 8.5), ("exponential", 4.0)])
def test_a_ramp_has_its_mean_rates_at_the_start_in_the_middle_and_at_the_end(strategy, middle):
    gaps = np.diff(seconds(workload(ramp(strategy, 1, 16), n=40_001).requests()))
    means = [1 / gaps[i : i + 2000].mean() for i in (0, 19_000, 38_000)]
    ends = (1.4, 15.6) if strategy == "linear" else (1.07, 14.9)
    assert means == pytest.approx([ends[0], middle, ends[1]], rel=0.1)


@pytest.mark.parametrize(("burstiness", "cv"), [(0.25, 2.0), (1.0, 1.0), (4.0, 0.5)])
def test_burstiness_is_one_over_the_squared_variation_of_the_gaps(burstiness, cv):
    arrivals = {"kind": "gamma", "request_rate": 10, "burstiness": burstiness}
    gaps = np.diff(seconds(workload(arrivals, n=20_000).requests()))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


def test_constant_recorded_and_infinite_rates():
    constant = workload({"kind": "constant", "request_rate": 4}, n=5).requests()
    assert list(seconds(constant)) == [0, 0.25, 0.5, 0.75, 1.0]
    recorded = workload({"kind": "recorded", "timestamps_s": [0, 0.5, 0.5, 7]}, n=None)
    assert list(seconds(recorded.requests())) == [0, 0.5, 0.5, 7]
    at_once = workload({"kind": "poisson", "request_rate": float("inf")}, n=3)
    assert list(seconds(at_once.requests())) == [0, 0, 0]
    text = json.dumps(at_once.to_dict(), allow_nan=False)
    assert parse_workload(json.loads(text)) == at_once


def test_a_duration_ends_the_sending_and_keeps_the_rate():
    arrivals = {"kind": "poisson", "request_rate": 50}
    planned = workload(arrivals, n=None, stop={"duration_s": 40}).requests()
    assert 0 <= planned[0].t_sched_ns < planned[-1].t_sched_ns < 40e9
    assert len(planned) == pytest.approx(2000, rel=0.1)
    both = workload(arrivals, stop={"duration_s": 40, "num_prompts": 30}).requests()
    assert len(both) == 30


def test_one_request_needs_no_draws_for_the_rest_of_the_duration():
    stop = {"num_prompts": 1, "duration_s": 1e9}
    planned = workload({"kind": "poisson", "request_rate": 1000}, stop=stop).requests()
    assert [request.t_sched_ns for request in planned] == [0]


def test_gaps_that_never_fill_the_duration_are_refused():
    """So bursty that every gap comes out as 0."""
    arrivals = {"kind": "gamma", "request_rate": 1, "burstiness": 1e-300}
    with pytest.raises(ValueError, match=r"burstiness = 1e-300: more than 1,000,000 requests"):
        workload(arrivals, n=None, stop={"duration_s": 10}).requests()


def test_a_closed_loop_plans_no_send_times():
    planned = workload({"kind": "closed", "concurrency": 4}, n=10).requests()
    assert len(planned) == 10
    assert {r.t_sched_ns for r in planned} == {None}


@given(seed=st.integers(0, 1000))
def test_lengths_stay_where_they_were_told_to(seed):
    chat = CHAT | {
        "prompt_tokens": {"kind": "lognormal", "median": 200, "sigma": 1.5, "low": 8, "high": 900},
        "output_tokens": {"kind": "uniform", "low": 3, "high": 5},
    }
    document = DOCUMENT | {
        "prompt_tokens": {"kind": "list", "values": [7, 8, 9]},
        "output_tokens": {"kind": "empirical", "values": [1, 100]},
    }
    planned = workload(n=80, classes=[chat, document], seed=seed).requests()
    chats = [r for r in planned if r.class_name == "chat"]
    assert all(8 <= r.prompt_tokens <= 900 and 3 <= r.output_tokens <= 5 for r in chats)
    documents = [r for r in planned if r.class_name == "document"]
    assert [r.prompt_tokens for r in documents] == ([7, 8, 9] * 14)[:40]
    assert {r.output_tokens for r in documents} == {1, 100}


def test_the_lognormal_has_the_median_and_spread_it_says():
    chat = CHAT | {"prompt_tokens": {"kind": "lognormal", "median": 5000, "sigma": 0.5}}
    logs = np.log([r.prompt_tokens for r in workload(n=20_000, classes=[chat]).requests()])
    assert np.exp(np.median(logs)) == pytest.approx(5000, rel=0.02)
    assert logs.std() == pytest.approx(0.5, rel=0.03)


def test_cancellations_take_their_exact_share_of_their_class():
    rules = [
        {"class_name": "chat", "share": 0.2, "after_tokens": 3},
        {"share": 0.1, "after_s": 1.5},
    ]
    planned = workload(cancellations=rules).requests()
    by_tokens = [r for r in planned if r.cancel_after_tokens == 3]
    by_time = [r for r in planned if r.cancel_after_ns == 1_500_000_000]
    assert [len(by_tokens), len(by_time)] == [10, 10]
    assert {r.class_name for r in by_tokens} == {"chat"}
    assert not {r.index for r in by_tokens} & {r.index for r in by_time}
    plain = workload().requests()
    assert [r.t_sched_ns for r in planned] == [r.t_sched_ns for r in plain]


BAD = [
    ({"classes": []}, r"classes: .*at least 1 item"),
    ({"clases": [CHAT]}, r"unknown field 'clases'; allowed are name, description"),
    ({"classes": [CHAT | {"limits": {"ttft": 1}}]}, r"limits: unknown field 'ttft'; .*ttft_ms"),
    ({"classes": [CHAT | {"limits": {"ttft_ms": -1}}]}, r"Limits.ttft_ms = -1: must be"),
    ({"classes": [CHAT | {"prompt_tokens": 0}]}, r"prompt_tokens.*greater than or equal to 1"),
    ({"classes": [CHAT | {"prompt_tokens": "64"}]}, r"'64': must be a whole number of tokens"),
    ({"classes": [CHAT | {"output_tokens": True}]}, r"True: must be a whole number of tokens"),
    ({"classes": [CHAT | {"share": 0}]}, r"classes\[0\].share: .*greater than 0, not 0"),
    ({"classes": [CHAT, CHAT]}, r"classes\[1\].name = 'chat': each name may be used once"),
    ({"arrivals": {"kind": "weekly"}}, r"arrivals: .*'closed', 'poisson'"),
    ({"arrivals": {"kind": "poisson", "request_rate": 0}}, r"request_rate: .*greater than 0"),
    (
        {"arrivals": {"kind": "poisson", "request_rate": 1, "burstiness": 2}},
        r"burstiness = 2: belongs to kind 'gamma'",
    ),
    ({"arrivals": {"kind": "recorded", "timestamps_s": [1, 0]}}, r"timestamps_s\[1\] = 0: must"),
    ({"stop": {}}, r"stop: give num_prompts or duration_s"),
    (
        {
            "arrivals": {
                "kind": "ramp_up",
                "ramp_up_strategy": "linear",
                "ramp_up_start_rps": 2,
                "ramp_up_end_rps": 1,
            }
        },
        r"ramp_up_end_rps = 1: must be at least ramp_up_start_rps = 2",
    ),
    (
        {
            "arrivals": {
                "kind": "ramp_up",
                "ramp_up_strategy": "linear",
                "ramp_up_start_rps": 1,
                "ramp_up_end_rps": 2,
            },
            "stop": {"duration_s": 5},
        },
        r"stop.num_prompts: a ramp goes over that many requests",
    ),
    ({"stop": {"num_prompts": 1.5}}, r"stop.num_prompts: .*valid integer, not 1.5"),
    ({"stop": {"num_prompts": 5, "drain": False}}, r"drain = false: needs duration_s"),
    (
        {"arrivals": {"kind": "closed", "concurrency": 2}, "stop": {"duration_s": 1}},
        r"stop.num_prompts: a closed loop needs it",
    ),
    ({"cancellations": [{"share": 0.5}]}, r"give exactly one of after_s and after_tokens"),
    (
        {"cancellations": [{"share": 0.5, "after_s": 1, "class_name": "chta"}]},
        r"cancellations\[0\].class_name = 'chta': must be one of chat, document",
    ),
    ({"seed": -1}, r"seed: .*greater than or equal to 0, not -1"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_a_bad_workload_says_which_field_and_what_is_allowed(change, message):
    with pytest.raises(ValueError, match=message):
        workload(**change)


def test_a_burst_of_more_requests_than_are_left_is_refused():
    arrivals = {"kind": "constant", "request_rate": 1, "burst": {"at_s": 8, "num_prompts": 5}}
    with pytest.raises(ValueError, match=r"burst.num_prompts = 5: only 2 requests"):
        workload(arrivals, n=10).requests()


def test_a_burst_that_outlasts_the_duration_is_refused():
    burst = {"at_s": 8, "num_prompts": 2, "over_s": 5}
    arrivals = {"kind": "constant", "request_rate": 1, "burst": burst}
    with pytest.raises(ValueError, match=r"burst: ends at 13 s: must be before .*duration_s = 10"):
        workload(arrivals, n=None, stop={"duration_s": 10}).requests()
    assert len(workload(arrivals, n=None, stop={"duration_s": 14}).requests()) == 14


def test_send_times_beyond_any_clock_are_refused():
    for rate in (1e-300, 1e-9):
        arrivals = {"kind": "constant", "request_rate": rate}
        with pytest.raises(ValueError, match=r"arrivals: .* s: must end within 1e\+09 s"):
            workload(arrivals, n=3).requests()


def test_an_absurd_number_of_requests_is_refused_before_it_is_made():
    arrivals = {"kind": "poisson", "request_rate": 1e9}
    with pytest.raises(ValueError, match=r"more than 1,000,000 requests"):
        workload(arrivals, n=None, stop={"duration_s": 1e6}).requests()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("classes: [", r"bad.yaml: not a YAML file"),
        ("- 1", r"bad.yaml: expected a mapping"),
        ("name: x", r"bad.yaml: classes: Field required"),
        ("!!python/object/apply:os.getcwd []", r"bad.yaml: not a YAML file"),
    ],
)
def test_a_bad_file_is_named(tmp_path, text, message):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_workload(path)


def test_a_folder_of_that_name_does_not_hide_a_shipped_workload(tmp_path, monkeypatch):
    (tmp_path / "burst").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_workload("burst").name


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"nope: no such workload; .*burst, chat_and_documents"):
        load_workload("nope")

"""A server measured from outside: it always ends, and a distance is one round trip in TTFT."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from llmlab.config import EngineConfig
from llmlab.labs import hosted
from llmlab.labs.hosted import Api, OwnApi, beside, measure, other_api
from llmlab.labs.relay import far_away
from llmlab.measure.client import Endpoint
from llmlab.measure.metrics import summarize
from llmlab.measure.workload import Workload, parse_workload
from llmlab.viz.figures.ttft_parts import ttft_parts


def closed(users: int = 1, requests: int = 2) -> Workload:
    return parse_workload(
        {
            "name": "small",
            "classes": [{"name": "chat", "prompt_tokens": 8, "output_tokens": 32}],
            "arrivals": {"kind": "closed", "concurrency": users},
            "stop": {"num_prompts": requests},
        }
    )


@pytest.fixture(scope="module")
def near():
    """The tiny model behind HTTP in a thread: base URL of its server."""
    from llmlab.engine import Engine, load_model
    from llmlab.serve.server import running

    config = EngineConfig(num_blocks=64, max_model_len=128)
    with running(Engine(load_model("tiny"), config)) as url:
        yield url


def api_of(url: str) -> Api:
    return Api(Endpoint(url, "tiny", continuous_usage=True), vocab_size=256)


@pytest.mark.timing
def test_a_distance_adds_one_round_trip_to_ttft_and_none_to_the_steps(near):
    measure(api_of(near), closed())  # warm
    here = summarize(measure(api_of(near), closed())).all
    with far_away(near, 200) as url:
        there = summarize(measure(api_of(near), closed(), via=url)).all
    assert 180 < there["ttft"].p50 - here["ttft"].p50 < 380, "once, not twice"
    assert abs(there["tpot"].p50 - here["tpot"].p50) < 150, "a round trip a step would be 200"


def test_a_distance_is_at_least_one_round_trip(near):
    """However busy the machine: half of it there, half of it back."""
    with far_away(near, 200) as url:
        assert summarize(measure(api_of(near), closed(), via=url)).all["ttft"].min >= 199


def test_it_all_works_in_a_notebook_whose_thread_runs_a_loop(near):
    async def cell() -> int:
        with far_away(near, 1) as url:
            return len(measure(api_of(near), closed(), via=url).requests)

    assert asyncio.run(cell()) == 2


def test_another_way_to_a_server_changes_the_way_and_nothing_else(near, monkeypatch):
    sent = []

    class Seen(hosted.LoadClient):
        def __init__(self, endpoint):
            sent.append(endpoint)
            super().__init__(endpoint)

    monkeypatch.setattr(hosted, "LoadClient", Seen)
    chat = Endpoint(near, "tiny", api="chat", api_key="k", timeout_s=99, continuous_usage=True)
    with far_away(near, 0) as url:
        measure(Api(chat), closed(), via=url)
    assert sent == [replace(chat, base_url=url)]


def test_the_relay_refuses_a_distance_that_is_none(near):
    with pytest.raises(ValueError, match="rtt_ms"), far_away(near, -1):
        pass


def test_nobody_listening_is_said_in_one_sentence():
    with pytest.raises(ValueError, match=r"no request completed at http://127\.0\.0\.1:9"):
        measure(Api(Endpoint("http://127.0.0.1:9", "x"), 100), closed())


def test_the_concurrency_must_be_controlled():
    opened = closed().with_(arrivals={"kind": "constant", "request_rate": 1.0})
    with pytest.raises(ValueError, match="must be 'closed'"):
        measure(Api(Endpoint("http://127.0.0.1:9", "x"), 100), opened)


def test_a_key_is_taken_from_the_environment_and_never_shown(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    api = other_api("https://api.example", "some-model")
    assert api.endpoint.request_headers()["Authorization"] == "Bearer sk-very-secret"
    assert "secret" not in repr(api.endpoint) + repr(api) + repr(vars(api))
    assert not api.is_own
    assert api.server_trace(None) is None


def test_an_endpoint_without_a_model_is_refused():
    with pytest.raises(ValueError, match="must be the name of a model"):
        other_api("https://api.example", None)


def test_a_coroutine_runs_beside_a_running_loop_and_its_error_comes_back():
    async def notebook() -> int:
        return beside(asyncio.sleep(0, result=7))

    assert asyncio.run(notebook()) == 7

    async def fails() -> None:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        beside(fails())


@pytest.mark.slow
def test_the_own_server_shows_both_ends_and_is_gone_after_stop():
    api = OwnApi(["--model", "tiny", "--num-blocks", "64", "--max-model-len", "128"])
    try:
        trace = measure(api, closed(2, 4))
        inside = api.server_trace(trace)
        assert set(inside.requests) == set(trace.requests)
        for name, record in trace.requests.items():
            parts = ttft_parts("x", record, inside.requests[name])
            assert parts.outside > 0
            assert parts.outside + parts.front + parts.queue + parts.prefill == pytest.approx(
                parts.ttft, abs=0.01
            )
    finally:
        api.stop()
    assert api.process.poll() is not None
    api.stop()

"""The engine's thread: what leaves is gone before the next step, what breaks is said."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import httpx
import pytest
import torch

from llmlab.config import EngineConfig
from llmlab.engine import Engine, load_model
from llmlab.sched.request import SamplingParams
from llmlab.serve.errors import ApiError
from llmlab.serve.loop import EngineLoop
from llmlab.serve.server import running
from llmlab.serve.settings import ServeConfig
from tests.serve.fake import FakeEngine, words
from tests.serve.test_api import ask, assert_error
from tests.serve.test_guard import connect, request, serving


def with_loop(engine, body, **more):
    """Run `await body(loop)` with the engine's thread on."""

    async def main():
        settings = {"max_live": 8, "trace_requests": 100, "trace_steps": 100, **more}
        loop = EngineLoop(engine, model_name="fake", **settings)
        loop.start()
        try:
            return await asyncio.wait_for(body(loop), 20)
        finally:
            if engine.gate is not None:
                engine.gate.release(1000)
            await loop.stop()

    return asyncio.run(main())


def params(n):
    return SamplingParams(max_tokens=n)


async def text_of(stream):
    return "".join([output.text async for output in stream])


def test_an_abort_during_a_step_takes_effect_before_the_next():
    engine = FakeEngine()
    engine.gate = threading.Semaphore(0)

    async def body(loop):
        stream = await loop.submit([1], params(50), request_id="a")
        await asyncio.to_thread(engine.in_step.wait)  # the first step runs, and waits at its gate
        loop.abort("a")
        engine.gate.release(1000)
        assert await text_of(stream) == "", "nothing is emitted after an abort"
        await loop.call(lambda engine: None)

    with_loop(engine, body)
    assert engine.num_steps == 1
    assert engine.num_blocks_used == 0
    assert engine.trace.requests["a"].outcome == "cancelled"


def test_a_waiter_cancelled_while_it_is_being_added_leaves_nothing_behind():
    engine = FakeEngine()
    engine.gate = threading.Semaphore(0)

    async def body(loop):
        await loop.submit([1], params(2), request_id="a")
        await asyncio.to_thread(engine.in_step.wait)
        task = asyncio.create_task(loop.submit([2], params(50), request_id="b"))
        await asyncio.sleep(0.01)  # posted, but the engine is in a step
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert loop.num_live == 1
        engine.gate.release(1000)
        await loop.call(lambda engine: None)

    with_loop(engine, body)
    assert engine.trace.requests["b"].outcome == "cancelled"
    assert not engine.has_work


def test_an_id_is_taken_from_the_moment_it_is_handed_over():
    """Two requests under one name in one step: the second one must see the first."""
    engine = FakeEngine()
    engine.gate = threading.Semaphore(0)

    async def body(loop):
        await loop.submit([1], params(2), request_id="a")
        await asyncio.to_thread(engine.in_step.wait)
        waiting = asyncio.create_task(loop.submit([2], params(2), request_id="b"))
        await asyncio.sleep(0.01)  # posted, but the engine is in a step
        assert "b" not in engine.trace.requests
        assert loop.knows("b")
        engine.gate.release(1000)
        await text_of(await waiting)
        assert loop.knows("b"), "and also when it is over"
        assert not loop.knows("c")

    with_loop(engine, body)


def test_streams_do_not_mix_and_lose_nothing():
    engine = FakeEngine(EngineConfig(max_num_seqs=3))

    async def body(loop):
        async def one(i):
            stream = await loop.submit([i], params(5 + i), request_id=f"r{i}")
            return await text_of(stream)

        return await asyncio.gather(*(one(i) for i in range(8)))

    texts = with_loop(engine, body)
    assert texts == ["".join(words([i], 5 + i)) for i in range(8)]


def test_an_engine_that_breaks_fails_its_streams_and_refuses_new_requests():
    engine = FakeEngine()
    engine.crash_at = 3

    async def body(loop):
        stream = await loop.submit([1], params(50), request_id="a")
        with pytest.raises(ApiError) as caught:
            await text_of(stream)
        assert caught.value.status == 500
        assert "boom" not in str(caught.value), "the inside stays inside"
        with pytest.raises(ApiError) as caught:
            await loop.submit([1], params(5), request_id="b")
        assert caught.value.status == 503

    with_loop(engine, body)


def test_nobody_waits_for_an_engine_that_is_broken_in_all_it_does():
    engine = FakeEngine()
    engine.gate, engine.crash_at = threading.Semaphore(0), 1
    engine.abort = lambda request_id: 1 / 0

    async def body(loop):
        await loop.submit([1], params(50), request_id="a")
        await asyncio.to_thread(engine.in_step.wait)
        leaves = asyncio.create_task(loop.submit([2], params(5), request_id="leaves"))
        await asyncio.sleep(0.01)
        leaves.cancel()
        waits = asyncio.create_task(loop.submit([3], params(5), request_id="waits"))
        await asyncio.sleep(0.01)  # behind an abort that fails
        engine.gate.release(1000)
        with pytest.raises(ApiError, match="internal error"):
            await text_of(await asyncio.wait_for(waits, 5))

    with_loop(engine, body)


def test_the_trace_of_a_long_life_stays_small_and_keeps_what_runs():
    engine = FakeEngine(EngineConfig(max_num_seqs=4), step_s=0)
    engine.gate = threading.Semaphore(0)  # else the long one might end while a short one is read

    async def body(loop):
        long = await loop.submit([0], params(1500), request_id="long")
        for i in range(300):
            engine.gate.release(4)  # the step that is waiting, two of this request's, one to spare
            await text_of(await loop.submit([i], params(2), request_id=f"r{i}"))
        assert "long" in engine.trace.requests
        assert len(engine.trace.requests) <= 20 * 1.1 + 8 + 2
        assert len(engine.trace.steps) <= 50 * 1.1 + 2
        engine.gate.release(1500)
        assert (await text_of(long)).startswith(words([0], 1)[0])

    with_loop(engine, body, trace_requests=20, trace_steps=50)


# -- over HTTP -----------------------------------------------------------------------------


def test_two_requests_under_one_name_in_one_step_are_both_answered():
    engine = FakeEngine()
    engine.gate = threading.Semaphore(0)

    async def body(url):
        async with httpx.AsyncClient(base_url=url, timeout=10) as http:

            def post(**headers):
                body = {"model": "fake", "prompt": "a", "max_tokens": 2}
                sent = http.post("/v1/completions", json=body, headers=headers)
                return asyncio.create_task(sent)

            first = post()
            await asyncio.to_thread(engine.in_step.wait)
            answers = [first, post(**{"X-Request-Id": "same"}), post(**{"X-Request-Id": "same"})]
            await asyncio.sleep(0.1)  # on a machine slower than that they come one by one
            engine.gate.release(1000)
            return [answer.json()["id"] for answer in await asyncio.gather(*answers)]

    with serving(engine) as (_, url):
        ids = asyncio.run(body(url))
    assert len(set(ids)) == 3
    assert "cmpl-same" in ids


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_disconnects_frees_its_blocks_within_one_step(stream):
    engine = FakeEngine(step_s=0.02)
    with running(engine, ServeConfig(port=0, model_name="fake")) as url:
        connection = connect(url)
        body = {"model": "fake", "prompt": "a", "max_tokens": 1000, "stream": stream}
        connection.sendall(request(json.dumps(body).encode()))
        while engine.num_steps < 3:
            time.sleep(0.005)
        assert engine.num_blocks_used == 1
        connection.close()
        steps = engine.num_steps
        deadline = time.monotonic() + 5
        while engine.num_blocks_used and time.monotonic() < deadline:
            time.sleep(0.001)
        # The step that ran when the connection closed, and one more for the news to travel.
        assert engine.num_steps <= steps + 2
        assert engine.num_blocks_used == 0
        assert [r.outcome for r in engine.trace.requests.values()] == ["cancelled"]


def test_a_crash_is_an_error_frame_without_done_and_then_health_says_so(caplog):
    engine = FakeEngine()
    engine.crash_at = 5
    with serving(engine) as (_, url), httpx.Client(base_url=url) as http:
        text = ask(http, max_tokens=50, stream=True).text
        assert '"error"' in text
        assert "[DONE]" not in text
        assert_error(http.get("/health"), 503, "stopped")
        assert_error(ask(http), 503)
    assert "boom" in caplog.text, "the log has what the client is not told"


def test_closing_the_server_lets_running_answers_finish():
    engine = FakeEngine(step_s=0.01)
    answers = []
    with running(engine, ServeConfig(port=0, model_name="fake")) as url:
        thread = threading.Thread(
            target=lambda: answers.append(
                ask(httpx.Client(base_url=url), max_tokens=40, stream=True)
            )
        )
        thread.start()
        while engine.num_steps < 3:
            time.sleep(0.005)
    thread.join()
    assert answers[0].text.endswith("data: [DONE]\n\n")
    assert engine.num_blocks_used == 0


@pytest.mark.slow
def test_closing_cuts_what_takes_longer_than_the_drain_time():
    engine = FakeEngine(EngineConfig(max_model_len=10**6), step_s=0.01)
    started = None
    with running(engine, ServeConfig(port=0, model_name="fake", drain_timeout=1)) as url:
        connection = connect(url)
        body = {"model": "fake", "prompt": "a", "max_tokens": 100_000, "stream": True}
        connection.sendall(request(json.dumps(body).encode()))
        while engine.num_steps < 3:
            time.sleep(0.005)
        started = time.monotonic()
    assert time.monotonic() - started < 10
    assert engine.num_blocks_used == 0
    connection.close()


# -- when it came, and when it cannot be computed ------------------------------------------


def test_a_request_that_comes_during_a_step_is_queued_from_then_on():
    """Not from the end of that step: what waits behind a long prefill waits, it is not prepared."""
    engine = FakeEngine()
    engine.gate = threading.Semaphore(0)
    clock = time.perf_counter_ns

    async def body(loop):
        first = await loop.submit([1], params(2), request_id="a")
        await asyncio.to_thread(engine.in_step.wait)  # the step runs, and waits at its gate
        came = clock()
        waiting = asyncio.create_task(loop.submit([2], params(2), request_id="b", t_send=came))
        await asyncio.sleep(0.05)
        released = clock()
        engine.gate.release(1000)
        await text_of(first)
        await text_of(await waiting)
        return came, released

    came, released = with_loop(engine, body)
    record = engine.trace.requests["b"]
    assert came <= record.t_queued < released <= record.t_first_scheduled


class Scarce:
    """A runner on a card that runs out of memory when a request begins with this token."""

    POISON = 66

    def __init__(self, runner):
        self.runner = runner
        self.build = runner.build
        runner.build = self

    def __call__(self, plan):
        if any(request.prompt_token_ids[0] == self.POISON for request, _ in plan.scheduled):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return self.build(plan)


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_out_of_memory_fails_its_requests_with_numbers_and_the_server_goes_on(
    caplog, stream, overlapped
):
    engine = Engine(load_model("tiny"), EngineConfig(num_blocks=64), async_scheduling=overlapped)
    Scarce(engine.runner)
    config = ServeConfig(port=0, model_name="fake")
    with running(engine, config) as url, httpx.Client(base_url=url, timeout=20) as http:
        assert ask(http, prompt="A good one", max_tokens=2).status_code == 200
        with pytest.warns(RuntimeWarning, match="out of memory"):
            answer = ask(http, prompt="Bad", max_tokens=2, stream=stream)
        said = answer.text
        assert "up to 10 tokens and 1 requests have fitted" in said
        assert "max_num_batched_tokens = 10 and max_num_seqs = 1, or fewer num_blocks" in said
        assert '"out_of_memory"' in said
        assert "[DONE]" not in said
        assert "GiB" not in said, "the inside stays inside"
        if not stream:
            assert_error(answer, 503, "out of memory")
        assert ask(http, prompt="A good one", max_tokens=2).status_code == 200
        assert http.get("/health").status_code == 200
        assert 'finished_reason="error"' in http.get("/metrics").text
    assert "out of memory" in caplog.text, "the operator is told"
    assert engine.scheduler.num_blocks_used == 0
    outcomes = [record.outcome for record in engine.trace.requests.values()]
    assert outcomes == ["completed", "failed", "completed"]

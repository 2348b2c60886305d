"""The door: size, pace, key and address. Whoever misbehaves is turned away; the engine is not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from urllib.parse import urlsplit

import httpx
import pytest

from llmlab.config import EngineConfig
from llmlab.serve.server import running
from llmlab.serve.settings import ServeConfig
from tests.serve.fake import FakeEngine
from tests.serve.test_api import JSON, ask, assert_error

KEY = "test-key-0123456789"


@contextlib.contextmanager
def serving(engine=None, **config):
    engine = engine or FakeEngine()
    with running(engine, ServeConfig(port=0, model_name="fake", **config)) as url:
        yield engine, url


def connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    connection = socket.create_connection((parts.hostname, parts.port))
    connection.settimeout(10)
    return connection


def read_all(connection: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            data += part
    return data


def request(body: bytes, length: int | None = None) -> bytes:
    n = len(body) if length is None else length
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {n}\r\n"
    return (head + "Content-Type: application/json\r\n\r\n").encode() + body


# -- size ----------------------------------------------------------------------------------


def test_a_10_mb_prompt_is_413_and_costs_the_engine_nothing(http, engine):
    before = len(engine.trace.requests)
    assert_error(ask(http, prompt="x" * 10_000_000), 413, "larger than")
    assert len(engine.trace.requests) == before


def test_a_body_of_unsaid_length_is_stopped_at_the_limit(http):
    def endless():
        for _ in range(100):
            yield b"x" * 100_000

    response = http.post("/v1/completions", content=endless(), headers=JSON)
    assert_error(response, 413, "larger than")


def test_a_form_or_plain_text_is_415(http):
    response = http.post("/v1/completions", content=b"{}", headers={"Content-Type": "text/plain"})
    assert_error(response, 415, "application/json")


def test_huge_headers_and_broken_http_are_400_in_the_same_shape(url):
    for raw in (
        b"GET /health HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"\x16\x03\x01 tls?\r\n\r\n",
    ):
        with connect(url) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(raw)
            head, _, body = read_all(connection).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400")
        assert json.loads(body)["error"]["type"] == "invalid_request_error"


# -- pace ----------------------------------------------------------------------------------


def test_a_slow_loris_is_cut_off_and_others_are_served():
    with serving(header_timeout=0.3, body_timeout=0.3) as (_, url):
        with connect(url) as silent, connect(url) as headers, connect(url) as body:
            headers.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-A: ")
            body.sendall(request(b'{"model"', length=100))
            with httpx.Client(base_url=url) as http:
                assert ask(http, max_tokens=2).status_code == 200
            started = time.monotonic()
            answers = [read_all(connection) for connection in (silent, headers, body)]
            assert time.monotonic() - started < 3
        assert all(answer.startswith(b"HTTP/1.1 408") for answer in answers)


def test_dripping_headers_do_not_buy_more_time():
    with serving(header_timeout=0.3) as (_, url), connect(url) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
        started = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - started < 3:
                connection.sendall(b"X: y\r\n")
                time.sleep(0.05)
                if b"408" in connection.recv(100, socket.MSG_DONTWAIT):
                    break
        assert time.monotonic() - started < 2


def test_a_second_request_on_a_connection_has_the_same_patience():
    with serving(header_timeout=0.3) as (_, url), connect(url) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea")
        answers = read_all(connection)
        assert answers.startswith(b"HTTP/1.1 200")
        assert b"HTTP/1.1 408" in answers


@pytest.mark.slow
def test_a_client_that_does_not_read_its_stream_is_cut_off_and_its_request_aborted():
    engine = FakeEngine(EngineConfig(max_model_len=10**6), step_s=0)
    with serving(engine, write_timeout=0.3) as (_, url), connect(url) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = {"model": "fake", "prompt": "a", "max_tokens": 400_000, "stream": True}
        connection.sendall(request(json.dumps(body).encode()))
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            records = list(engine.trace.requests.values())
            if records and records[0].outcome == "cancelled":
                break
            time.sleep(0.05)
        assert records[0].outcome == "cancelled"
        assert engine.num_blocks_used == 0


@pytest.mark.timing
def test_small_frames_are_not_held_back_for_an_acknowledgement(url):
    times = []
    with httpx.Client(base_url=url) as http:
        for _ in range(6):  # later requests of one connection are where the delay would show
            started = time.monotonic()
            ask(http, max_tokens=2, stream=True)
            times.append(time.monotonic() - started)
    assert min(times[1:]) < 0.03, "Linux delays an acknowledgement by 40 ms"


# -- how many ------------------------------------------------------------------------------


def test_a_full_house_is_429_with_a_time_to_come_back():
    engine = FakeEngine(EngineConfig(max_num_seqs=2), step_s=0.02)
    with serving(engine, max_queue=1) as (_, url), httpx.Client(base_url=url) as http:
        answers: list[httpx.Response] = []
        threads = [
            threading.Thread(
                target=lambda: answers.append(ask(httpx.Client(base_url=url), max_tokens=20))
            )
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        while len(engine.trace.requests) < 3:
            time.sleep(0.005)
        refused = ask(http, max_tokens=1)
        assert_error(refused, 429, "3 requests")
        assert int(refused.headers["retry-after"]) >= 1
        for thread in threads:
            thread.join()
        assert [answer.status_code for answer in answers] == [200] * 3
        assert ask(http, max_tokens=1).status_code == 200


def test_too_many_streams_are_429_and_a_place_is_free_again_afterwards():
    engine = FakeEngine(step_s=0.01)
    with serving(engine, max_streams=1) as (_, url), httpx.Client(base_url=url) as http:
        body = {"model": "fake", "prompt": "a", "max_tokens": 50, "stream": True}
        with http.stream("POST", "/v1/completions", json=body) as first:
            parts = first.iter_raw()
            next(parts)
            with httpx.Client(base_url=url) as other:
                assert_error(ask(other, stream=True), 429, "streams")
                assert ask(other, max_tokens=1).status_code == 200
            assert b"[DONE]" in list(parts)[-1]
        time.sleep(0.05)
        assert ask(http, stream=True, max_tokens=1).status_code == 200


def test_streams_that_come_during_one_step_count_before_the_engine_has_seen_them():
    engine = FakeEngine()
    engine.gate = threading.Semaphore(0)

    async def body(url):
        async with httpx.AsyncClient(base_url=url, timeout=10) as http:

            def post(stream):
                body = {"model": "fake", "prompt": "a", "max_tokens": 2, "stream": stream}
                return asyncio.create_task(http.post("/v1/completions", json=body))

            first = post(stream=False)
            await asyncio.to_thread(engine.in_step.wait)  # the step runs, and waits at its gate
            ends = asyncio.as_completed([post(stream=True) for _ in range(3)])
            refused = [await next(ends) for _ in range(2)]
            engine.gate.release(1000)
            return [*refused, *[await end for end in ends], await first]

    with serving(engine, max_streams=1) as (_, url):
        answers = asyncio.run(body(url))
    assert [answer.status_code for answer in answers] == [429, 429, 200, 200]


# -- who -----------------------------------------------------------------------------------


def test_a_key_is_asked_for_everywhere_but_at_health(caplog):
    with serving(api_key=KEY) as (engine, url), httpx.Client(base_url=url) as http:
        assert http.get("/health").status_code == 200
        for path in ("/v1/models", "/metrics", "/trace", "/openapi.json", "/nope"):
            assert_error(http.get(path), 401, "API key")
        for wrong in (
            "",
            "Bearer",
            f"Bearer {KEY}x",
            f"Bearer {KEY[:-1]}",
            KEY,
            "Basic x",
        ):
            response = http.get("/v1/models", headers={"Authorization": wrong})
            error = assert_error(response, 401)
            assert error["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"
        right = {"Authorization": f"Bearer {KEY}"}
        assert http.get("/v1/models", headers=right).status_code == 200
    assert KEY not in caplog.text
    assert not engine.trace.requests


def test_the_key_is_not_in_the_configs_repr():
    assert KEY not in repr(ServeConfig(api_key=KEY))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_an_address_others_can_reach_needs_a_key(host):
    with pytest.raises(ValueError, match="API key"):
        ServeConfig(host=host)
    assert ServeConfig(host=host, api_key=KEY).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LocalHost", "::1", "127.8.9.1"])
def test_addresses_of_this_machine_need_none(host):
    assert ServeConfig(host=host).api_key is None


@pytest.mark.parametrize(
    "key", ["", "short", "has a space in it, long", "ümlaut-ümlaut-ümlaut", "a" * 20 + "\n"]
)
def test_a_key_that_cannot_be_one_is_refused_without_showing_it(key):
    with pytest.raises(ValueError, match="api_key") as caught:
        ServeConfig(api_key=key)
    assert not key or key not in str(caught.value)


def test_a_web_page_elsewhere_cannot_reach_a_server_without_a_key(http):
    response = http.get("/v1/models", headers={"Host": "evil.example:8000"})
    assert_error(response, 403, "Host")
    assert http.get("/v1/models", headers={"Host": "localhost:1"}).status_code == 200


NONSENSE = {
    "port": 70000,
    "max_body_bytes": 0,
    "max_queue": -1,
    "write_timeout": 0,
    "drain_timeout": -1,
}


@pytest.mark.parametrize(("field", "value"), NONSENSE.items())
def test_a_setting_that_makes_no_sense_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"ServeConfig.{field}"):
        ServeConfig(**{field: value})

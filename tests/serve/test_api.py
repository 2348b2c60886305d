"""What the API answers, on the fake engine: shapes, counts, and errors in OpenAI's shape."""

from __future__ import annotations

import json

import pytest

from llmlab.measure.sse import SSEDecoder
from tests.serve.fake import words

CHAT = [{"role": "user", "content": "hello"}]
JSON = {"Content-Type": "application/json"}


def ask(http, **body):
    return http.post("/v1/completions", json={"model": "fake", "prompt": "hello", **body})


def frames(response) -> list:
    events = SSEDecoder().feed(response.content)
    assert events[-1].data == "[DONE]"
    return [json.loads(event.data) for event in events[:-1]]


def test_models_are_listed_with_what_a_client_needs_to_know(http):
    (card,) = http.get("/v1/models").json()["data"]
    assert card["id"] == "fake"
    assert (card["max_model_len"], card["vocab_size"]) == (2048, 259)
    assert http.get("/v1/models/fake").json() == card


def test_a_completion_has_text_usage_and_a_finish_reason(http):
    answer = ask(http, max_tokens=4).json()
    assert answer["object"] == "text_completion"
    assert answer["choices"][0]["text"] == "".join(words(list(b"hello"), 4))
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["prompt_tokens"] == 5
    assert answer["usage"]["completion_tokens"] == 4
    assert answer["usage"]["total_tokens"] == 9


def test_completions_write_16_tokens_unless_told_otherwise(http):
    assert ask(http).json()["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("prompt", ["hello", ["hello"], list(b"hello"), [list(b"hello")]])
def test_a_prompt_may_be_text_or_token_ids_alone_or_in_a_list(http, prompt):
    answer = ask(http, prompt=prompt, max_tokens=3).json()
    assert answer["choices"][0]["text"] == "".join(words(list(b"hello"), 3))


def test_a_stream_says_the_same_as_the_answer_in_one_piece(http):
    whole = ask(http, max_tokens=6).json()["choices"][0]["text"]
    response = ask(http, max_tokens=6, stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    chunks = frames(response)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * 5 + ["length"]
    assert all("usage" not in chunk for chunk in chunks)


def test_a_chat_stream_opens_with_the_role_and_closes_with_the_usage(http):
    body = {"model": "fake", "messages": CHAT, "max_tokens": 3, "stream": True}
    body["stream_options"] = {"include_usage": True}
    chunks = frames(http.post("/v1/chat/completions", json=body))
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in chunks[1:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 3
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_continuous_usage_grows_by_the_tokens_of_each_frame(http):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = frames(ask(http, max_tokens=3, stream=True, stream_options=options))
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 3]


def test_token_ids_come_back_when_asked_for(http):
    assert ask(http, max_tokens=3, return_token_ids=True).json()["choices"][0]["token_ids"] == [
        0, 1, 2
    ]  # fmt: skip
    chunks = frames(ask(http, max_tokens=2, stream=True, return_token_ids=True))
    assert [chunk["choices"][0]["token_ids"] for chunk in chunks] == [[0], [1]]


def test_chat_content_may_come_in_text_parts(http):
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    for content in ("hello", parts):
        body = {"model": "fake", "messages": [{"role": "user", "content": content}]}
        answer = http.post("/v1/chat/completions", json={**body, "max_completion_tokens": 3}).json()
        assert answer["choices"][0]["message"]["content"] == "".join(words(list(b"hello"), 3))


def test_null_means_not_said(http):
    nothing = dict.fromkeys(["temperature", "top_p", "stop", "seed", "logprobs", "n", "user"])
    assert ask(http, max_tokens=2, **nothing).status_code == 200


def test_the_class_and_id_a_client_names_are_in_the_trace(http, engine):
    headers = {"X-Request-Id": "abc-1", "X-Request-Class": "chat"}
    body = {"model": "fake", "prompt": "a", "max_tokens": 1}
    first = http.post("/v1/completions", json=body, headers=headers).json()
    assert first["id"] == "cmpl-abc-1"
    assert engine.trace.requests["cmpl-abc-1"].class_name == "chat"
    again = http.post("/v1/completions", json=body, headers=headers).json()
    assert again["id"] != first["id"], "a name used twice does not mix two requests up"
    bad = http.post("/v1/completions", json=body, headers={"X-Request-Id": "a b\t;"})
    assert_error(bad, 400, "x-request-id")


# -- errors --------------------------------------------------------------------------------


def assert_error(response, status, *words_of_it):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    for word in words_of_it:
        assert word in error["message"]
    return error


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"{", "not valid JSON"),
        (b"", "not valid JSON"),
        (b'{"model": "fake", "prompt": "\xff\xfe"}', "not valid JSON"),
        (b'{"model": "fake", "prompt": "\\ud800"}', "not valid JSON"),
        (b"[1]", "object"),
        (b"null", "object"),
        (b'{"prompt": "a"}', "model"),
        (b'{"model": "fake"}', "prompt"),
        (b'{"model": 7, "prompt": "a"}', "model"),
        (b'{"model": "fake", "prompt": ""}', "prompt is empty"),
        (b'{"model": "fake", "prompt": []}', "prompt is empty"),
        (b'{"model": "fake", "prompt": [[]]}', "prompt is empty"),
        (b'{"model": "fake", "prompt": ["a", "b"]}', "one prompt"),
        (b'{"model": "fake", "prompt": {"a": 1}}', "prompt"),
        (b'{"model": "fake", "prompt": "a", "max_tokens": "5"}', "max_tokens"),
        (b'{"model": "fake", "prompt": "a", "max_tokens": 1.5}', "max_tokens"),
        (b'{"model": "fake", "prompt": "a", "max_tokens": true}', "max_tokens"),
        (b'{"model": "fake", "prompt": "a", "max_tokens": 0}', "max_tokens"),
        (b'{"model": "fake", "prompt": "a", "max_tokens": -1}', "max_tokens"),
        (b'{"model": "fake", "prompt": "a", "max_tokens": 99999}', "max_model_len"),
        (b'{"model": "fake", "prompt": "a", "max_tokens": 1' + b"0" * 5000 + b"}", "out of range"),
        (b'{"model": "fake", "prompt": "a", "max_tokens": 1' + b"0" * 40 + b"}", "max_tokens"),
        (b'{"model": "fake", "prompt": "a", "temperature": NaN}', "temperature"),
        (b'{"model": "fake", "prompt": "a", "temperature": -1}', "temperature"),
        (b'{"model": "fake", "prompt": "a", "top_p": 0}', "top_p"),
        (b'{"model": "fake", "prompt": "a", "min_tokens": 9, "max_tokens": 3}', "min_tokens"),
        (b'{"model": "fake", "prompt": "a", "n": 2}', "n"),
        (b'{"model": "fake", "prompt": "a", "stop": ""}', "stop"),
        (b'{"model": "fake", "prompt": "a", "logprobs": 99}', "logprobs"),
        (b'{"model": "fake", "prompt": "a", "presence_penalty": 1}', "presence_penalty"),
        (b'{"model": "fake", "prompt": "a", "max_token": 5}', "unknown field 'max_token'"),
        (b'{"model": "fake", "prompt": "a", "stream_options": {}}', "stream"),
    ],
)  # fmt: skip
def test_a_bad_body_is_a_400_that_names_the_field(http, body, word):
    error = assert_error(http.post("/v1/completions", content=body, headers=JSON), 400, word)
    assert error["type"] == "invalid_request_error"
    assert len(error["message"]) < 2000


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "king", "content": "hi"}]}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
    ],
)
def test_a_bad_chat_is_a_400(http, change, word):
    body = {"model": "fake", "messages": CHAT, **change}
    assert_error(http.post("/v1/chat/completions", json=body), 400, word)


def test_a_chat_that_the_models_template_refuses_is_a_400(http, engine, monkeypatch):
    def refuse(messages):
        raise ValueError("the model's chat template refuses it: no system message")

    monkeypatch.setattr(engine.tokenizer, "chat", refuse)
    answer = http.post("/v1/chat/completions", json={"model": "fake", "messages": CHAT})
    assert_error(answer, 400, "no system message")


def test_unknown_models_paths_and_methods(http):
    error = assert_error(ask(http, model="gpt-9"), 404, "gpt-9", "fake")
    assert error["code"] == "model_not_found"
    assert_error(http.get("/v1/models/gpt-9"), 404, "gpt-9")
    assert_error(http.get("/nope"), 404, "/nope")
    assert_error(http.get("/v1/completions"), 405, "GET")


def test_bad_requests_leave_the_engine_untouched(http, engine):
    steps, requests = engine.num_steps, len(engine.trace.requests)
    ask(http, max_tokens="5")
    ask(http, model="gpt-9")
    http.post("/v1/completions", content=b"{", headers=JSON)
    assert (engine.num_steps, len(engine.trace.requests)) == (steps, requests)
    assert not engine.has_work


def test_a_refusal_by_the_engine_comes_before_the_stream_begins(http):
    response = ask(http, max_tokens=99999, stream=True)
    assert_error(response, 400, "max_model_len")


def test_the_openapi_page_names_every_path(http):
    page = http.get("/openapi.json").json()
    assert page["openapi"].startswith("3.1")
    assert "/v1/chat/completions" in page["paths"]
    assert set(page["components"]["schemas"]) >= {"CompletionRequest", "ChatRequest", "Error"}


def test_the_trace_can_be_fetched_and_read(http):
    from llmlab.trace import Trace

    ask(http, max_tokens=2)
    trace = Trace.from_jsonl(http.get("/trace").text.splitlines())
    assert trace.requests
    assert trace.steps

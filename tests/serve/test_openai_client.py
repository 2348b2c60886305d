"""The `openai` package talks to the real engine as to any server: answers, streams, errors."""

from __future__ import annotations

import httpx
import openai
import pytest

from llmlab.engine import Engine, load_model
from llmlab.sched.request import SamplingParams
from llmlab.serve.server import running
from llmlab.serve.settings import ServeConfig

CHAT = [{"role": "user", "content": "Say something."}]


@pytest.fixture(scope="module")
def model():
    return load_model("tiny")


@pytest.fixture(scope="module")
def engine(model):
    return Engine(model)


@pytest.fixture(scope="module")
def client(engine):
    with (
        running(engine, ServeConfig(port=0)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def solo(model, prompt, **params) -> str:
    """What the engine answers on its own, without a server."""
    return "".join(o.text for o in Engine(model).stream(prompt, SamplingParams(**params)))


def test_models(client):
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_a_chat_answer_is_the_engines_answer(client, model):
    answer = client.chat.completions.create(
        model="tiny", messages=CHAT, temperature=0, max_completion_tokens=12
    )
    prompt = model.tokenizer.chat(CHAT)
    assert answer.choices[0].message.content == solo(model, prompt, max_tokens=12)
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.choices[0].finish_reason in ("stop", "length")


def test_a_seeded_stream_is_the_answer_in_pieces(client):
    options = {"model": "tiny", "messages": CHAT, "temperature": 1.0, "seed": 7, "max_tokens": 12}
    whole = client.chat.completions.create(**options)
    chunks = list(
        client.chat.completions.create(
            **options, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_completions_with_text_and_with_token_ids(client, model):
    by_text = client.completions.create(model="tiny", prompt="Hello", temperature=0, max_tokens=8)
    by_ids = client.completions.create(
        model="tiny", prompt=list(b"Hello"), temperature=0, max_tokens=8
    )
    assert by_text.choices[0].text == by_ids.choices[0].text == solo(model, "Hello", max_tokens=8)
    chunks = client.completions.create(
        model="tiny", prompt="Hello", temperature=0, max_tokens=8, stream=True
    )
    assert "".join(c.choices[0].text for c in chunks) == by_text.choices[0].text


def test_ignore_eos_and_min_tokens_fix_the_length(client):
    for extra in ({"ignore_eos": True}, {"min_tokens": 30}):
        answer = client.completions.create(
            model="tiny", prompt="a", max_tokens=30, seed=1, extra_body=extra
        )
        assert answer.usage.completion_tokens == 30


def test_a_stop_string_ends_the_answer_before_it(client):
    options = {"model": "tiny", "prompt": "Hello", "temperature": 0, "max_tokens": 20}
    text = client.completions.create(**options).choices[0].text
    stop = text[3:5]
    cut = client.completions.create(**options, stop=stop).choices[0]
    assert (cut.text, cut.finish_reason) == (text[: text.index(stop)], "stop")
    chunks = client.completions.create(**options, stop=[stop], stream=True)
    assert "".join(c.choices[0].text for c in chunks) == cut.text


def test_logprobs_belong_to_the_tokens_of_the_answer(client):
    answer = client.chat.completions.create(
        model="tiny", messages=CHAT, temperature=0, max_tokens=6, logprobs=True, top_logprobs=3
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    for token in content:
        assert len(token.top_logprobs) == 3
        # temperature 0 takes the most likely token
        assert token.logprob == token.top_logprobs[0].logprob <= 0
    legacy = client.completions.create(
        model="tiny", prompt="Hello", temperature=0, max_tokens=6, logprobs=2
    )
    listed = legacy.choices[0].logprobs
    assert len(listed.tokens) == len(listed.token_logprobs) == len(listed.text_offset) == 6
    assert listed.text_offset[0] == 0
    chunks = client.completions.create(
        model="tiny", prompt="Hello", temperature=0, max_tokens=6, logprobs=2, stream=True
    )
    streamed = [c.choices[0].logprobs for c in chunks]
    assert [x for c in streamed for x in c.token_logprobs] == pytest.approx(listed.token_logprobs)
    assert [x for c in streamed for x in c.text_offset] == listed.text_offset


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"model": "gpt-9"}, openai.NotFoundError),
        ({"temperature": -1}, openai.BadRequestError),
        ({"max_tokens": 10**6}, openai.BadRequestError),
        ({"messages": [{"role": "user", "content": "x" * 5_000_000}]}, openai.APIStatusError),
    ],
)
def test_errors_are_the_clients_own_exceptions(client, engine, change, error):
    with pytest.raises(error) as caught:
        client.chat.completions.create(**{"model": "tiny", "messages": CHAT, **change})
    assert caught.value.body["message"]
    assert not engine.has_work


def test_a_token_id_outside_the_vocabulary_is_a_400(client):
    with pytest.raises(openai.BadRequestError, match="token id"):
        client.completions.create(model="tiny", prompt=[1, 10**6], max_tokens=1)


def test_a_stream_that_is_closed_early_frees_its_blocks(client, engine):
    stream = client.completions.create(
        model="tiny", prompt="Hello", max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
    )
    for _ in range(3):
        next(stream)
    assert engine.scheduler.num_blocks_used > 0
    stream.close()
    client.models.list()
    steps = len(engine.trace.steps)
    while engine.scheduler.num_blocks_used and len(engine.trace.steps) < steps + 50:
        pass
    assert engine.scheduler.num_blocks_used == 0
    assert len(engine.trace.steps) <= steps + 1, "gone within one step"
    engine.scheduler.check_integrity()


def test_a_wrong_key_is_an_authentication_error(model):
    config = ServeConfig(port=0, api_key="right-key-0123456789")
    with running(Engine(model), config) as url:
        for key, works in (("right-key-0123456789", True), ("wrong-key-0123456789", False)):
            with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
                if works:
                    assert client.models.list().data
                else:
                    with pytest.raises(openai.AuthenticationError):
                        client.models.list()
        assert httpx.get(f"{url}/health").status_code == 200

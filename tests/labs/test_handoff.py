"""A learner's generate: a right one passes on any model, each usual mistake is named."""

from __future__ import annotations

import pytest

from llmlab.config import EngineConfig
from llmlab.engine import Engine, load_model
from llmlab.labs.handoff import Passes, check_generate, generate, show_passes
from llmlab.perf.calibrate import cost_model
from llmlab.sched import SamplingParams


def test_the_library_s_own_passes():
    assert check_generate(generate).state == "correct"


def all_again(forward, prompt, count):
    answer = []
    for _ in range(count):
        answer.append(forward(prompt + answer))
    return answer


def token_by_token(forward, prompt, count):
    for token in prompt:
        answer = [forward([token])]
    while len(answer) < count:
        answer.append(forward(answer[-1:]))
    return answer


def one_too_many(forward, prompt, count):
    answer = [forward(prompt)]
    for _ in range(count):
        answer.append(forward(answer[-1:]))
    return answer[:count]


def one_short(forward, prompt, count):
    return generate(forward, prompt, count)[:-1]


def last_of_the_prompt_twice(forward, prompt, count):
    answer, token = [], forward(prompt) and prompt[-1]
    for _ in range(count):
        token = forward([token])
        answer.append(token)
    return answer


MISTAKES = [
    (all_again, "cached already"),
    (token_by_token, "into pieces"),
    (one_too_many, "one pass too many"),
    (one_short, "must be a list of 4"),
    (last_of_the_prompt_twice, "other tokens"),
    (lambda f, p, n: p + generate(f, p, n), "only the new tokens"),
    (lambda f, p, n: f(p), "must be a list"),
    (lambda f, p, n: generate(f, p, n) and None, "returns None"),
    (lambda f, p, n: [f(p), f(7)], "TypeError"),
]


def test_each_usual_mistake_is_named():
    for wrong, said in MISTAKES:
        result = check_generate(wrong)
        assert result.state == "incorrect", said
        assert said in result.message


def test_a_stub_is_not_answered_yet():
    def stub(*_):
        raise NotImplementedError

    assert check_generate(stub).state == "not answered yet"
    assert check_generate(lambda *_: ...).state == "not answered yet"


@pytest.fixture(scope="module")
def model():
    return load_model("tiny")


def test_passes_by_hand_give_the_engine_s_tokens(model):
    ids = [(7 * i + 3) % 250 for i in range(37)]  # more than two blocks
    engine = Engine(model, EngineConfig(max_num_batched_tokens=16, max_model_len=64))
    params = SamplingParams(max_tokens=9, ignore_eos=True)
    theirs = [t for out in engine.stream(ids, params) for t in out.token_ids]
    hand = Passes(model)
    assert generate(hand.forward, ids, 9) == theirs
    assert [n for n, _ in hand.log] == [37] + [1] * 8
    single = Passes(model)
    assert [single.forward([token]) for token in ids][-1] == theirs[0]
    with pytest.raises(ValueError, match="must be 1 to 512"):
        hand.forward([1] * 500)


def test_the_table_says_what_went_in_and_what_came_out(model):
    engine = Engine(model, EngineConfig(max_num_batched_tokens=16, max_model_len=64))
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    for _ in engine.stream(list(range(24)), params, request_id="one"):
        pass
    text = show_passes(engine.trace, "one", cost_model(model))._repr_mimebundle_()["text/plain"]
    rows = [line.split()[:3] for line in text.splitlines()[2:]]
    assert rows[:3] == [["1", "16", "16"], ["2", "8", "24"], ["3", "1", "25"]]
    assert rows[-1] == ["13", "1", "35"]
    assert "nothing yet" in text
    for name in ("two", "three"):
        engine.add([1, 2, 3], params, request_id=name)
    engine.step()
    with pytest.raises(ValueError, match="shares a step"):
        show_passes(engine.trace, "two", cost_model(model))

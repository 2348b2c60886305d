"""Text to ids and back: transformers' ids, and streams that join to the whole text."""

from __future__ import annotations

import copy
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmlab.engine.gguf_file import open_gguf
from llmlab.engine.load import find_smollm2
from llmlab.engine.tokenizer import (
    BPETokenizer,
    ByteDetokenizer,
    ByteTokenizer,
    PrefixDetokenizer,
    byte_level_alphabet,
    byte_level_bpe,
    check_messages,
)

BYTES = {i: bytes([i]) for i in range(256)}


def stream(detokenizer, ids):
    return [*(detokenizer.push(i) for i in ids), detokenizer.flush()]


def test_an_emoji_appears_only_with_its_last_byte():
    assert stream(ByteDetokenizer(BYTES.__getitem__), b"\xf0\x9f\x99\x82") == ["", "", "", "🙂", ""]


def test_two_byte_letters_appear_each_when_whole():
    assert stream(ByteDetokenizer(BYTES.__getitem__), "ďá".encode()) == ["", "ď", "", "á", ""]


def test_a_cut_character_is_flushed_once_as_the_whole_decode_gives_it():
    deltas = stream(ByteDetokenizer(BYTES.__getitem__), b"a\xf0\x9f")
    assert deltas == ["a", "", "", "\ufffd"]
    assert "".join(deltas) == ByteTokenizer().decode(b"a\xf0\x9f")


@given(st.binary(max_size=40))
def test_deltas_of_any_bytes_join_to_the_whole_decode(data):
    tokenizer = ByteTokenizer()
    assert "".join(stream(tokenizer.detokenizer(), data)) == tokenizer.decode(data)


@given(st.text(max_size=20))
def test_valid_text_never_shows_a_replacement_character(text):
    data = text.replace("\ufffd", "").encode("utf-8", "ignore")
    deltas = stream(ByteDetokenizer(BYTES.__getitem__), data)
    assert "\ufffd" not in "".join(deltas)
    assert "".join(deltas) == data.decode()


@given(st.text(max_size=12), st.lists(st.integers(1, 4), max_size=40))
def test_the_window_detokenizer_joins_to_the_whole_for_tokens_of_any_byte_count(text, sizes):
    data, pieces, at = text.encode("utf-8", "ignore"), {}, 0
    while at < len(data):
        size = sizes.pop() if sizes else 1
        pieces[len(pieces)] = data[at : at + size]
        at += size

    def decode(ids):
        return b"".join(pieces[i] for i in ids).decode("utf-8", "replace")

    assert "".join(stream(PrefixDetokenizer(decode), list(pieces))) == decode(list(pieces))


def test_the_byte_alphabet_is_one_to_one():
    alphabet = byte_level_alphabet()
    assert sorted(alphabet) == list(range(256))
    assert len(set(alphabet.values())) == 256
    assert alphabet[ord(" ")] == "Ġ"
    assert alphabet[ord("\n")] == "Ċ"


def test_byte_tokenizer_frames_a_chat():
    t = ByteTokenizer()
    ids = t.chat([{"role": "user", "content": "hi"}])
    assert ids == [t.IM_START, *b"user\nhi", t.IM_END, t.IM_START, *b"assistant\n"]


@pytest.mark.parametrize(
    ("messages", "word"),
    [
        ([], "messages"),
        ([{"role": "user"}], "content"),
        ([{"role": "user", "content": 3}], "content"),
        (["hi"], "role"),
    ],
)
def test_a_malformed_conversation_is_refused_by_name(messages, word):
    with pytest.raises(ValueError, match=word):
        check_messages(messages)


# ---------------------------------------------------------------- the real vocabulary


@pytest.fixture(scope="module")
def smollm2_tokenizer():
    return open_gguf(find_smollm2()).tokenizer


@pytest.fixture(scope="module")
def their_tokenizer(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    path = find_smollm2()
    return transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)


def with_digits(tokenizer):
    """transformers' tokenizer with the pre-tokenizer that the model was published with."""
    pre = pytest.importorskip("tokenizers").pre_tokenizers
    tokenizer.backend_tokenizer.pre_tokenizer = pre.Sequence(
        [pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)]
    )
    return tokenizer


def strings() -> list[str]:
    """200 strings: digits, emoji, CJK, code, whitespace, markers, and random mixtures of them."""
    fixed = [
        "", " ", "  ", "\n", "\t\tx", "Hello, world!", "don't you're we'll I'M", "3.14159",
        "1234567890", "a1b2c3", "٣٤٥", "½ ² ₃", "12 345,67 €", "0x1F", "🙂", "👨‍👩‍👧‍👦 family",
        "🇫🇷🇯🇵", "你好，世界", "日本語のテキスト", "한국어 문장", "Žluťoučký kůň", "Здравствуй, мир",
        "שלום עולם", "مرحبا بالعالم", "हिन्दी", "e\u0301 é", "\u200bzero\u200bwidth",
        "def f(x):\n    return x ** 2\n", "for (int i = 0; i < 10; ++i) { a[i] = i; }",
        "SELECT * FROM t WHERE id = 42;", "<html><body class='x'>&amp;</body></html>",
        "<|im_start|>user\nhi<|im_end|>\n", "<|endoftext|>", "<|im_start", "a  b   c    d",
        "trailing space ", "UPPER lower MiXeD", "snake_case camelCase kebab-case",
        "https://example.com/a?b=c&d=1#e", "\\n is not \n", "$x^2 + y^2 = z^2$", "\x00\x01\x7f",
        "\r\n windows \r\n", "....!!!???", "''\"\"``", "supercalifragilisticexpialidocious",
    ]  # fmt: skip
    rng = random.Random(0)
    pools = [
        "abcdefghijklmnopqrstuvwxyz     ",
        "0123456789.,- ",
        "🙂🚀❤️👍🏽🎉 ",
        "中文字符日本語한국어 ",
        "(){}[];:=+-*/<>\n\t \"'_abcxyz019",
        "ěščřžýáíéůúñüßøå ",
    ]
    while len(fixed) < 200:
        pool = "".join(rng.sample(pools, rng.randint(1, 3)))
        fixed.append("".join(rng.choice(pool) for _ in range(rng.randint(1, 60))))
    return fixed


@pytest.mark.slow
def test_ids_are_those_of_transformers_on_200_strings(smollm2_tokenizer, their_tokenizer):
    assert len(strings()) == 200
    restored = with_digits(copy.deepcopy(their_tokenizer))
    for text in strings():
        ids = smollm2_tokenizer.encode(text)
        # transformers' GGUF reader drops the model's own splitting of digits: as it comes it
        # serves for text without numerals, with the published pre-tokenizer for all.
        if not any(c.isnumeric() for c in text):
            assert ids == their_tokenizer.encode(text), repr(text)
        assert ids == restored.encode(text), repr(text)


@pytest.mark.slow
def test_every_streamed_prefix_joins_to_the_text_of_its_ids(smollm2_tokenizer):
    for text in strings():
        ids = smollm2_tokenizer.encode(text)
        detokenizer, so_far = smollm2_tokenizer.detokenizer(), ""
        for count, token in enumerate(ids, 1):
            so_far += detokenizer.push(token)
            whole = smollm2_tokenizer.decode(ids[:count])
            assert whole.startswith(so_far)
            assert set(whole[len(so_far) :]) <= {"\ufffd"}  # only an open character is missing
        assert so_far + detokenizer.flush() == smollm2_tokenizer.decode(ids)


@pytest.mark.slow
def test_any_ids_stream_to_their_decode(smollm2_tokenizer):
    rng = random.Random(1)
    for _ in range(200):
        ids = [rng.randrange(smollm2_tokenizer.vocab_size) for _ in range(30)]
        deltas = stream(smollm2_tokenizer.detokenizer(), ids)
        assert "".join(deltas) == smollm2_tokenizer.decode(ids)


@pytest.mark.slow
def test_the_chat_template_is_the_models_own(smollm2_tokenizer, their_tokenizer):
    messages = [
        {"role": "user", "content": "What is 2+2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "And 3+3?"},
    ]
    ids = smollm2_tokenizer.chat(messages)
    text = their_tokenizer.decode(ids)
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_start|>user\nAnd 3+3?<|im_end|>\n<|im_start|>assistant\n")
    theirs = their_tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    assert text == theirs
    assert smollm2_tokenizer.eos_token_id == smollm2_tokenizer.encode("<|im_end|>")[0]


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('no system message') }}", "refuses it: no system message"),
        ("{{ messages[7].content }}", "cannot render it"),
        ("{% if %}", "cannot render it"),
        ("{{ 'a' + 1 }}", "cannot render it"),
    ],
)
def test_a_conversation_that_the_template_does_not_take_is_refused_in_its_words(template, words):
    backend = byte_level_bpe(sorted(byte_level_alphabet().values()), [], [])
    with pytest.raises(ValueError, match=words):
        BPETokenizer(backend, None, template).chat([{"role": "user", "content": "hi"}])

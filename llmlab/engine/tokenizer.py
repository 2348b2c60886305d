"""Text to token ids and back, and back again piece by piece.

Two kinds behind one interface: `BPETokenizer` (a `tokenizers` object, for real models) and
`ByteTokenizer` (256 bytes and three markers, for the tiny ones). Knows nothing of the model.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

Message = Mapping[str, str]

DEFAULT_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Detokenizer(Protocol):
    """Text as it becomes certain. The deltas of all calls, joined, are `decode(ids)`."""

    def push(self, token_id: int) -> str: ...
    def flush(self) -> str: ...


class Tokenizer(Protocol):
    """What the engine needs. Special tokens are ids of their own and have no text."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def eos_token_id(self) -> int | None: ...
    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...
    def chat(self, messages: Sequence[Message]) -> list[int]: ...
    def detokenizer(self) -> Detokenizer: ...


class ByteDetokenizer:
    """Bytes to text; an open UTF-8 character waits until it is whole or known to be broken."""

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._utf8.decode(self._bytes_of(token_id))

    def flush(self) -> str:
        """The rest at the end of generation: one replacement character for a cut one."""
        return self._utf8.decode(b"", True)


class PrefixDetokenizer:
    """For decoders that are not byte for byte: decodes a short window again and emits its growth.

    An open character at the end decodes to one U+FFFD, so exactly that one waits. The window
    moves on only from a point where nothing waited.
    """

    WINDOW = 8

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._clean = 0  # the window may begin here later: no character was open
        self._emitted = 0  # characters of the window's text that are out already

    def push(self, token_id: int) -> str:
        self._ids.append(token_id)
        text = self._decode(self._ids)
        waits = text.endswith("\ufffd")
        delta = text[self._emitted : len(text) - waits]
        self._emitted += len(delta)
        if not waits:
            if len(self._ids) > self.WINDOW and self._clean:
                self._ids = self._ids[self._clean :]
                self._emitted = len(self._decode(self._ids))
            self._clean = len(self._ids)
        return delta

    def flush(self) -> str:
        delta = self._decode(self._ids)[self._emitted :]
        self._emitted += len(delta)
        return delta


class ByteTokenizer:
    """Ids 0..255 are bytes; 256 ends a text, 257 and 258 frame a chat message."""

    END_OF_TEXT, IM_START, IM_END = 256, 257, 258
    vocab_size = 259
    eos_token_id: int | None = IM_END

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8", "surrogatepass"))

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i < 256).decode("utf-8", "replace")

    def chat(self, messages: Sequence[Message]) -> list[int]:
        ids: list[int] = []
        for message in check_messages(messages):
            text = f"{message['role']}\n{message['content']}"
            ids += [self.IM_START, *self.encode(text), self.IM_END]
        return [*ids, self.IM_START, *self.encode("assistant\n")]

    def detokenizer(self) -> Detokenizer:
        return ByteDetokenizer(lambda token_id: bytes([token_id]) if token_id < 256 else b"")


class BPETokenizer:
    """Wraps a `tokenizers.Tokenizer`; the chat template is Jinja, run in a sandbox."""

    def __init__(
        self, backend: Any, eos_token_id: int | None, chat_template: str | None = None
    ) -> None:
        self.backend = backend
        self.eos_token_id = eos_token_id
        self.chat_template = chat_template or DEFAULT_CHAT_TEMPLATE
        # Token by token, as they come: a table of all would be the first request's wait.
        self._added = backend.get_added_tokens_decoder()
        self._of_char = {char: byte for byte, char in byte_level_alphabet().items()}
        self._bytes_of = cache(self._bytes_of_token)

    @property
    def vocab_size(self) -> int:
        return int(self.backend.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        return list(self.backend.encode(text).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.backend.decode(list(ids), skip_special_tokens=True))

    def chat(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a conversation, ready for the assistant's answer.

        ValueError, in the template's words, for a conversation that the model's template refuses
        (`raise_exception`, as Hugging Face's templates have it) or cannot render.
        """
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _refuse
        try:
            template = environment.from_string(self.chat_template)
            text = template.render(messages=check_messages(messages), add_generation_prompt=True)
        except (TemplateError, TypeError) as error:
            raise ValueError(f"the model's chat template cannot render it: {error}") from error
        return list(self.backend.encode(text, add_special_tokens=False).ids)

    def detokenizer(self) -> Detokenizer:
        if type(self.backend.decoder).__name__ == "ByteLevel":
            return ByteDetokenizer(self._bytes_of)
        return PrefixDetokenizer(self.decode)

    def _bytes_of_token(self, token_id: int) -> bytes:
        """Bytes of a token of a byte-level vocabulary; none for an id that it does not have."""
        token = self.backend.id_to_token(token_id)
        added = self._added.get(token_id)
        if added is not None:
            # Added but not special tokens are plain text, markers are no text at all.
            return b"" if added.special else token.encode()
        return b"" if token is None else bytes(map(self._of_char.__getitem__, token))


def _refuse(message: str) -> None:
    raise ValueError(f"the model's chat template refuses it: {message}")


def check_messages(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Messages as plain dicts, or a ValueError that says which one lacks role or content."""
    if not messages:
        raise ValueError("messages = []: must be a list of {'role': ..., 'content': ...}")
    for index, message in enumerate(messages):
        for key in ("role", "content"):
            if not isinstance(message, Mapping) or not isinstance(message.get(key), str):
                raise ValueError(f"messages[{index}] = {message!r}: must have a text {key!r}")
    return [dict(message) for message in messages]


def byte_level_alphabet() -> dict[int, str]:
    """The printable character that stands for each byte in a byte-level BPE vocabulary.

    GPT-2's rule: printable Latin-1 bytes stand for themselves, the rest follow from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {
        **{byte: chr(byte) for byte in printable},
        **{byte: chr(256 + n) for n, byte in enumerate(hidden)},
    }


_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# How text is cut before merging, by the names GGUF files use; None is GPT-2's own rule. The
# patterns are those of the models' published tokenizer.json.
PRE_TOKENIZERS: dict[str, str | None] = {
    "default": None,
    "gpt-2": None,
    "smollm": None,
    "llama-bpe": _WORDS % "{1,3}",
    "qwen2": _WORDS % "",
}


def byte_level_bpe(
    tokens: Sequence[str],
    merges: Sequence[str],
    special: Sequence[str],
    *,
    pre: str = "default",
    bos: str | None = None,
) -> Any:
    """A `tokenizers` byte-level BPE from a vocabulary in id order and its merges in rank order.

    pre: a key of PRE_TOKENIZERS. bos: token that `encode` puts first.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
    from tokenizers import pre_tokenizers as split
    from tokenizers.processors import TemplateProcessing

    vocab = {token: index for index, token in enumerate(tokens)}
    pairs = [(left, right) for left, right in (merge.split(" ", 1) for merge in merges)]
    backend = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    pattern = PRE_TOKENIZERS[pre]
    steps: list[Any] = [split.ByteLevel(add_prefix_space=False, use_regex=pattern is None)]
    if pattern is not None:
        steps.insert(0, split.Split(Regex(pattern), behavior="isolated"))
    if pre == "smollm":
        steps.insert(0, split.Digits(individual_digits=True))
    backend.pre_tokenizer = split.Sequence(steps)
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    if bos is not None:
        backend.post_processor = TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, vocab[bos])]
        )
    return backend

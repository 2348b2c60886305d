"""Reads a Llama-type GGUF file: shape, tokenizer, and tensors dequantised to float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from llmlab.config import ModelConfig
from llmlab.engine.gguf_header import check_header
from llmlab.engine.tokenizer import PRE_TOKENIZERS, BPETokenizer, byte_level_bpe
from llmlab.engine.weights import Source

_SPECIAL = 3  # token_type of a control token in GGUF

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_PART = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def open_gguf(path: Path) -> Source:
    """Source over a GGUF file of architecture llama or qwen3; ValueError if it is not one."""
    import gguf

    try:
        check_header(path)
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: not a whole GGUF file: {error}") from error
    try:
        reader = gguf.GGUFReader(str(path))
    except (ValueError, LookupError, TypeError, ArithmeticError, OSError) as error:
        raise ValueError(
            f"{path}: not a whole GGUF file: it ends before its tensors do, or their shapes are "
            f"damaged ({error}). Download it again"
        ) from error
    tensors = {hf_name(t.name): t for t in reader.tensors}
    config = gguf_config(reader, path, tied="lm_head.weight" not in tensors)
    permuted = read(reader, "general.architecture", path) == "llama"

    def get(name: str) -> torch.Tensor:
        tensor = tensors[name]
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        weight = torch.from_numpy(values.copy() if not values.flags.writeable else values)
        if permuted and name.endswith(("q_proj.weight", "k_proj.weight")):
            weight = unpermute(weight, config.head_dim)
        return weight.float()

    return Source(config, gguf_tokenizer(reader, path), list(tensors), get)


def unpermute(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Undo llama.cpp's row order, which pairs (2i, 2i+1), for the pairs (i, i + D/2) used here."""
    rows, columns = weight.shape
    pairs = weight.view(rows // head_dim, head_dim // 2, 2, columns)  # [H, D/2, 2, E]
    return pairs.transpose(1, 2).reshape(rows, columns)  # [H, 2, D/2, E] flattened: [H * D, E]


def hf_name(name: str) -> str:
    """Hugging Face's name of a GGUF tensor."""
    if name in _TOP:
        return _TOP[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _PART:
        return f"model.layers.{parts[1]}.{_PART[parts[2]]}.{parts[3]}"
    raise ValueError(f"GGUF tensor {name!r}: not part of a Llama or Qwen3 model")


_MISSING: Any = object()


def read(reader: Any, key: str, path: Path, default: Any = _MISSING) -> Any:
    """One metadata value."""
    found = reader.get_field(key)
    if found is not None:
        return found.contents()
    if default is _MISSING:
        raise ValueError(f"{path}: metadata {key!r} is missing")
    return default


def gguf_config(reader: Any, path: Path, *, tied: bool) -> ModelConfig:
    arch = read(reader, "general.architecture", path)
    if arch not in ("llama", "qwen3"):
        raise ValueError(f"{path}: general.architecture = {arch!r}: must be 'llama' or 'qwen3'")
    if read(reader, f"{arch}.rope.scaling.type", path, "none") not in ("none", None):
        raise ValueError(f"{path}: rope scaling is not supported")

    def of(key: str, default: Any = _MISSING) -> Any:
        return read(reader, f"{arch}.{key}", path, default)

    heads, hidden = of("attention.head_count"), of("embedding_length")
    return ModelConfig(
        name=path.stem,
        num_hidden_layers=of("block_count"),
        hidden_size=hidden,
        intermediate_size=of("feed_forward_length"),
        num_attention_heads=heads,
        num_key_value_heads=of("attention.head_count_kv", heads),
        head_dim=of("attention.key_length", hidden // heads),
        vocab_size=len(reader.get_field("tokenizer.ggml.tokens").data),
        max_position_embeddings=of("context_length"),
        rope_theta=float(of("rope.freq_base", 10_000.0)),
        # Stored in float32: six digits give back the number that was meant.
        rms_norm_eps=float(f"{of('attention.layer_norm_rms_epsilon'):.6g}"),
        tie_word_embeddings=tied,
        qk_norm=arch == "qwen3",
    )


def gguf_tokenizer(reader: Any, path: Path) -> BPETokenizer:
    kind = read(reader, "tokenizer.ggml.model", path)
    if kind != "gpt2":
        raise ValueError(f"{path}: tokenizer.ggml.model = {kind!r}: only 'gpt2' is supported")
    pre = read(reader, "tokenizer.ggml.pre", path, "default")
    if pre not in PRE_TOKENIZERS:
        raise ValueError(
            f"{path}: tokenizer.ggml.pre = {pre!r}: must be one of {', '.join(PRE_TOKENIZERS)}"
        )
    tokens = read(reader, "tokenizer.ggml.tokens", path)
    types = read(reader, "tokenizer.ggml.token_type", path)
    bos = None
    if read(reader, "tokenizer.ggml.add_bos_token", path, False):
        bos = tokens[read(reader, "tokenizer.ggml.bos_token_id", path)]
    backend = byte_level_bpe(
        tokens,
        read(reader, "tokenizer.ggml.merges", path),
        [token for token, type_ in zip(tokens, types, strict=True) if type_ == _SPECIAL],
        pre=pre,
        bos=bos,
    )
    eos = read(reader, "tokenizer.ggml.eos_token_id", path, None)
    return BPETokenizer(backend, eos, read(reader, "tokenizer.chat_template", path, None))

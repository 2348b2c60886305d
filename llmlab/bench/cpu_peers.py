"""What `llmlab bench cpu` compares: this engine and its peers, on the same weights.

A peer has `decode_steps(batch, context, steps)` and `prefill_seconds(tokens)`, both in seconds,
and where it serves many requests `serve_seconds(prompts, outputs)`.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import torch

from llmlab.bench.cpu_report import PEERS
from llmlab.config import EngineConfig
from llmlab.engine import Engine, Model
from llmlab.sched.request import SamplingParams
from llmlab.trace import Trace

MAX_LEN = 4096


def prompt(tokens: int, salt: int = 0) -> list[int]:
    """Ids of a prompt of this length; equal ones for every peer, no two alike in a batch."""
    return [100 + (37 * i + 101 * salt + i * i % 11) % 20_000 for i in range(tokens)]


class ThisEngine:
    """The engine of this package; `step()` is timed whole, from plan to text."""

    name = "llmlab"

    def __init__(self, model: Model) -> None:
        self.model = model
        self._decoding: dict[tuple[int, int], Engine] = {}

    def _engine(self, tokens: int, requests: int = 1, budget: int = 2048) -> Engine:
        """An engine whose pool holds this many tokens."""
        return Engine(
            self.model,
            EngineConfig(
                max_num_batched_tokens=budget,
                max_num_seqs=max(64, requests),
                num_blocks=-(-tokens // 16) + requests,
                max_model_len=MAX_LEN,
            ),
        )

    def decode_steps(self, batch: int, context: int, steps: int) -> list[float]:
        """Seconds of steps in which all requests decode; the same requests in the next round."""
        engine = self._decoding.get((batch, context))
        if engine is None:
            engine = self._engine(batch * (context + 256), batch)
            for salt in range(batch):
                length = SamplingParams(max_tokens=256, ignore_eos=True)
                engine.add(prompt(context - steps // 2, salt), length)
            while not engine.trace.steps or engine.trace.steps[-1].decode_tokens < batch:
                engine.step()
            self._decoding[batch, context] = engine
        seconds = []
        for _ in range(steps):
            start = time.perf_counter()
            engine.step()
            seconds.append(time.perf_counter() - start)
        return seconds

    def prefill_seconds(self, tokens: int) -> float:
        engine = self._engine(tokens + 16, budget=tokens)
        engine.add(prompt(tokens), SamplingParams(max_tokens=1))
        start = time.perf_counter()
        engine.step()
        return time.perf_counter() - start

    def serve(self, prompts: Sequence[list[int]], outputs: Sequence[int]) -> Trace:
        """The trace of all requests served together, sent at once."""
        tokens = sum(map(len, prompts)) + sum(outputs)
        engine = self._engine(tokens, len(prompts), budget=256)
        for ids, count in zip(prompts, outputs, strict=True):
            engine.add(ids, SamplingParams(max_tokens=count, ignore_eos=True))
        while engine.has_work:
            engine.step()
        return engine.trace

    def serve_seconds(self, prompts: Sequence[list[int]], outputs: Sequence[int]) -> float:
        start = time.perf_counter()
        self.serve(prompts, outputs)
        return time.perf_counter() - start


class TransformersGenerate:
    """Hugging Face transformers' `generate` in float32; each new token is stamped as it comes."""

    name = "transformers"

    def __init__(self, model: Any) -> None:
        self.model = model
        self._caches: dict[int, Any] = {}

    def decode_steps(self, batch: int, context: int, steps: int) -> list[float]:
        """Prompts are read once; each round cuts the cache back to them and goes on from there."""
        from transformers import DynamicCache, LogitsProcessorList

        start = context - steps // 2
        ids = torch.tensor([prompt(start, salt) for salt in range(batch)])
        cache = self._caches.get(batch)
        if cache is None:
            cache = self._caches[batch] = DynamicCache(config=self.model.config)
            self._generate(ids, 1, past_key_values=cache)
        if (beyond := cache.get_seq_length() - (start - 1)) > 0:
            cache.crop(-beyond)  # the last token of the prompt is computed again
        stamps: list[float] = []

        def stamp(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            stamps.append(time.perf_counter())
            return scores

        # Before the first stamp lies the call's own preparation: steps are the gaps after it.
        processors = LogitsProcessorList([stamp])
        self._generate(ids, steps + 1, past_key_values=cache, logits_processor=processors)
        return [b - a for a, b in pairwise(stamps)]

    def prefill_seconds(self, tokens: int) -> float:
        ids = torch.tensor([prompt(tokens)])
        start = time.perf_counter()
        self._generate(ids, 1)
        return time.perf_counter() - start

    def _generate(self, ids: torch.Tensor, count: int, **more: Any) -> None:
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # it renames its arguments
            self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=count,
                max_new_tokens=count,
                pad_token_id=0,
                **more,
            )


class TransformersBatching:
    """transformers' own continuous batching (`generate_batch`) over a pool given in advance."""

    name = "transformers continuous batching"

    def __init__(self, model: Any) -> None:
        self.model = model

    def _run(self, prompts: Sequence[list[int]], count: int) -> list[Any]:
        from transformers import ContinuousBatchingConfig, GenerationConfig

        # Pages of 256 tokens; sized to the load, for sizing itself takes longer than the load.
        pages = sum(-(-(len(p) + count) // 256) for p in prompts) + 4
        results = self.model.generate_batch(
            inputs=list(prompts),
            generation_config=GenerationConfig(
                max_new_tokens=count, do_sample=False, eos_token_id=-1, pad_token_id=0
            ),
            continuous_batching_config=ContinuousBatchingConfig(
                num_blocks=pages, max_batch_tokens=256
            ),
            record_timestamps=True,
            warmup=False,
        )
        return list(results.values())

    def decode_steps(self, batch: int, context: int, steps: int) -> list[float]:
        prompts = [prompt(context - steps // 2, salt) for salt in range(batch)]
        results = self._run(prompts, steps + 2)
        # Once the last request has its first token, every gap is a step in which all decode.
        everyone = max(r.timestamps[0] for r in results)
        stamps = [t for t in results[0].timestamps if t >= everyone]
        return [b - a for a, b in pairwise(stamps)]

    def serve_seconds(self, prompts: Sequence[list[int]], outputs: Sequence[int]) -> float:
        """Wall time; one length of output for all, the mean, for the call takes no other."""
        start = time.perf_counter()
        self._run(prompts, round(sum(outputs) / len(outputs)))
        return time.perf_counter() - start


def transformers_model() -> Any:
    """The same weights, in float32, as a transformers model."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from llmlab.engine.gguf_file import open_gguf
    from llmlab.engine.load import find_smollm2

    source = open_gguf(find_smollm2())
    c = source.config
    with torch.device("meta"):
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=c.vocab_size,
                hidden_size=c.hidden_size,
                intermediate_size=c.intermediate_size,
                num_hidden_layers=c.num_hidden_layers,
                num_attention_heads=c.num_attention_heads,
                num_key_value_heads=c.num_key_value_heads,
                head_dim=c.head_dim,
                max_position_embeddings=c.max_position_embeddings,
                rms_norm_eps=c.rms_norm_eps,
                tie_word_embeddings=True,
                rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
            )
        )
    weights = {name: source.get(name) for name in source.names}
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights, assign=True)
    model.tie_weights()
    rotary = type(model.model.rotary_emb)(config=model.config)
    model.model.rotary_emb = rotary  # its frequencies are no part of the weights
    return model.eval()


INSTALL = {"transformers": "pip install -e '.[test]'", "llama.cpp": "pip install -e '.[llama-cpp]'"}
MODULES = {"transformers": "transformers", "llama.cpp": "llama_cpp"}


def open_peers(wanted: Sequence[str]) -> tuple[list[Any], list[Any], dict[str, str]]:
    """Peers that decode, peers that serve, and why the others are not in the table."""
    decoding: list[Any] = []
    serving: list[Any] = []
    absent: dict[str, str] = {}
    for name in PEERS:
        if name not in wanted:
            absent[name] = "left out (--peers)"
        elif find_spec(MODULES[name]) is None:
            absent[name] = f"not installed ({INSTALL[name]})"
        elif name == "transformers":
            theirs = transformers_model()
            decoding.append(TransformersGenerate(theirs))
            serving.append(TransformersBatching(theirs))
        else:
            from llmlab.bench.cpu_llama import llama_peers

            decoding += llama_peers()
    return decoding, serving, absent

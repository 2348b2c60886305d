"""Chats and long documents on one engine, chunked prefill on and off, and transformers beside it.

With whole prompts, every document stops all running chats for the time of its prefill: the gaps
between a chat's tokens show it. With chunks the same work is spread over many steps.
"""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from llmlab.bench.gpu_model import BLOCK, MODELS, TINY, random_model
from llmlab.bench.gpu_timing import Bench
from llmlab.config import EngineConfig, ModelConfig
from llmlab.engine.engine import Engine
from llmlab.engine.model import Model
from llmlab.kernels.launch import cdiv
from llmlab.sched.chunked import Chunked
from llmlab.sched.continuous import Continuous
from llmlab.sched.request import SamplingParams
from llmlab.trace import Trace

Row = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One request of the trace."""

    at: float  # seconds after the start
    kind: str  # "chat" or "document"
    prompt: list[int]
    max_tokens: int


def workload(tiny: bool, seed: int = 0) -> list[Job]:
    """Chats arriving evenly at random, and a document now and then."""
    rng = random.Random(seed)
    chats, documents, span = (2, 1, 0.05) if tiny else (128, 8, 4.0)
    jobs = []
    for _ in range(chats):
        length = rng.randint(3, 8) if tiny else rng.randint(100, 500)
        count = 3 if tiny else rng.randint(64, 192)
        jobs.append(Job(rng.uniform(0, span), "chat", _prompt(rng, length), count))
    for i in range(documents):
        length = 24 if tiny else rng.randint(6000, 8000)
        jobs.append(Job(span * (i + 0.5) / documents, "document", _prompt(rng, length), 2))
    return sorted(jobs, key=lambda job: job.at)


def _prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(250) for _ in range(length)]


def engine_config(jobs: list[Job], chunk: int, seqs: int) -> EngineConfig:
    """An engine with blocks for all jobs at once, `chunk` tokens a step and `seqs` requests."""
    longest = max(len(job.prompt) + job.max_tokens for job in jobs)
    blocks = sum(cdiv(len(job.prompt) + job.max_tokens, BLOCK) for job in jobs)
    return EngineConfig(
        max_num_batched_tokens=chunk,
        max_num_seqs=seqs,
        block_size=BLOCK,
        num_blocks=blocks,
        max_model_len=longest,
    )


def drive(engine: Engine, jobs: list[Job], at_once: bool = False) -> Trace:
    """Send each job at its time (or all at the start) and run until all are done."""
    start, waiting = engine.clock(), list(reversed(jobs))
    while waiting or engine.has_work:
        now = engine.clock()
        while waiting and (at_once or waiting[-1].at * 1e9 <= now - start):
            job = waiting.pop()
            params = SamplingParams(max_tokens=job.max_tokens, ignore_eos=True)
            due = start if at_once else start + int(job.at * 1e9)
            engine.add(job.prompt, params, class_name=job.kind, t_sched=due)
        if engine.has_work:
            engine.step()
        else:
            time.sleep(0.0005)
    return engine.trace


def figures(trace: Trace, kind: str = "chat") -> Row:
    """TTFT from the scheduled send, pooled gaps of one class, output tokens per second of all."""
    ttft, gaps, tokens, ends = [], [], 0, []
    for record in trace.requests.values():
        stamps = [event.t for event in record.events]
        tokens += len(stamps)
        ends.append(stamps[-1])
        if record.class_name == kind:
            ttft.append(stamps[0] - (record.t_sched or 0))
            gaps += np.diff(stamps).tolist()
    begin = min(record.t_sched or 0 for record in trace.requests.values())
    return {
        "ttft_p50_ms": float(np.percentile(ttft, 50)) / 1e6,
        "itl_p50_ms": float(np.percentile(gaps, 50)) / 1e6,
        "itl_p99_ms": float(np.percentile(gaps, 99)) / 1e6,
        "itl_max_ms": max(gaps) / 1e6,
        "gaps": len(gaps),
        "output_tokens": tokens,
        "output_tokens_per_s": tokens / (max(ends) - begin) * 1e9,
    }


def run(bench: Bench) -> Iterator[Row]:
    """The same arrivals with chunks, with steps that wait for each other, and whole prompts."""
    model = random_model(TINY if bench.tiny else MODELS[0], bench)
    jobs = workload(bench.tiny)
    whole = max(len(job.prompt) + job.max_tokens for job in jobs)
    chunk, seqs = (16, 4) if bench.tiny else (512, 128)
    kinds = (
        ("chunked", Chunked, chunk, True),
        ("chunked", Chunked, chunk, False),
        ("whole", Continuous, whole, True),
    )
    for name, scheduler, budget, overlapped in kinds:
        row: Row = {"trace": "chat and documents", "prefill": name, "model": model.config.name}
        row["async_scheduling"] = overlapped
        if bench.is_over():
            yield {**row, "status": "no time"}
            continue
        config = engine_config(jobs, budget, seqs)
        for _ in range(1 if bench.tiny else 2):  # the first run compiles
            engine = _engine(model, config, scheduler, overlapped)
            trace = drive(engine, jobs)
        yield {**row, "status": "ok", **figures(trace)}


def _engine(
    model: Model, config: EngineConfig, scheduler: Any = Chunked, overlapped: bool = True
) -> Engine:
    from llmlab.engine.cuda_runner import CudaRunner

    return Engine(
        model, config, scheduler, "triton", runner=CudaRunner, async_scheduling=overlapped
    )


# ---------------------------------------------------------------- transformers


def run_transformers(bench: Bench) -> Iterator[Row]:
    """All prompts at once: this engine, transformers' continuous batching, and `generate`."""
    config = TINY if bench.tiny else MODELS[0]
    count = 2 if bench.tiny else 64
    jobs = [
        Job(0.0, job.kind, job.prompt, count)
        for job in workload(bench.tiny)[: 3 if bench.tiny else 68]
    ]
    tokens = count * len(jobs)
    model = random_model(config, bench)
    seconds = []
    for _ in range(1 if bench.tiny else 3):
        chunk, seqs = (16, 4) if bench.tiny else (2048, 128)
        engine = _engine(model, engine_config(jobs, chunk, seqs))
        start = time.perf_counter()
        drive(engine, jobs, at_once=True)
        seconds.append(time.perf_counter() - start)
    ours = tokens / float(np.median(seconds))
    yield {
        "system": "llmlab",
        "async_scheduling": True,
        "status": "ok",
        "output_tokens_per_s": ours,
        "requests": len(jobs),
    }
    del model, engine
    peer = transformers_model(config, bench)
    for name, call in (("continuous batching", _continuous), ("generate, batch 8", _generate)):
        row = {"system": f"transformers {name}"}
        if bench.is_over():
            yield {**row, "status": "no time"}
            continue
        try:
            rate = call(bench, peer, jobs, count)
        except Exception as error:  # a peer's failure must not end ours
            yield {**row, "status": f"failed: {type(error).__name__}: {str(error)[:200]}"}
            continue
        yield {**row, "status": "ok", "output_tokens_per_s": rate, "ratio": ours / rate}


def transformers_model(config: ModelConfig, bench: Bench) -> Any:
    """The same shape with transformers' own random weights."""
    import transformers

    kind = transformers.Qwen3Config if config.qk_norm else transformers.LlamaConfig
    hf = kind(
        num_hidden_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        max_position_embeddings=config.max_position_embeddings,
        tie_word_embeddings=config.tie_word_embeddings,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=0,
    )
    with torch.device(bench.device):
        model = transformers.AutoModelForCausalLM.from_config(hf, dtype=bench.dtype)
    return model.eval()


def _continuous(bench: Bench, model: Any, jobs: list[Job], count: int) -> float:
    """Output tokens per second of transformers' continuous batching, graphs on."""
    from transformers import GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    model.set_attn_implementation("paged|sdpa")
    wanted = {"use_cuda_graph": bench.on_cuda, "auto_switch_to_flash": False}
    known = inspect.signature(ContinuousBatchingConfig).parameters
    batching = ContinuousBatchingConfig(**{k: v for k, v in wanted.items() if k in known})
    generation = GenerationConfig(max_new_tokens=count, do_sample=False, eos_token_id=-1)
    rates = []
    for _ in range(1 if bench.tiny else 2):
        start = time.perf_counter()
        outputs = model.generate_batch(
            [job.prompt for job in jobs],
            generation_config=generation,
            continuous_batching_config=batching,
        )
        seconds = time.perf_counter() - start
        made = sum(len(output.generated_tokens) for output in outputs.values())
        rates.append(made / seconds)
    return max(rates)


def _generate(bench: Bench, model: Any, jobs: list[Job], count: int) -> float:
    """Output tokens per second of `generate` on batches of 8, padded on the left."""
    model.set_attn_implementation("sdpa")
    start, made = time.perf_counter(), 0
    for first in range(0, len(jobs), 8):
        prompts = [job.prompt for job in jobs[first : first + 8]]
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts], device=bench.device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        out = model.generate(
            ids,
            attention_mask=mask.to(bench.device),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
        )
        made += (out.shape[1] - width) * len(prompts)
    return made / (time.perf_counter() - start)

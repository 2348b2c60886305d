"""A whole model's decode step beside its floor, and prefill tokens per second.

The floor of a decode step: every weight and every cached key and value is read once at the card's
read rate, and as many graph nodes as the step has cost what empty ones cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from llmlab.bench.gpu_timing import Bench, relative_error, summary
from llmlab.config import EngineConfig, ModelConfig
from llmlab.engine.batch import Batch
from llmlab.engine.cuda_memory import bytes_per_block
from llmlab.engine.cuda_runner import CudaRunner
from llmlab.engine.kv_cache import KVCache
from llmlab.engine.model import Layer, Model, PlainLinear
from llmlab.engine.tokenizer import ByteTokenizer
from llmlab.kernels.launch import cdiv
from llmlab.sched.plan import StepPlan
from llmlab.sched.request import Request

Row = dict[str, Any]
BLOCK = 16

# Shapes of the published config.json files; weights here are random.
MODELS = (
    ModelConfig("Qwen3-0.6B", 28, 1024, 3072, 16, 8, 128, 151_936, 40_960, 1e6, 1e-6, qk_norm=True),
    ModelConfig("Llama-3.2-1B", 16, 2048, 8192, 32, 8, 64, 128_256, 131_072, 5e5),
    ModelConfig(
        "Llama-3.1-8B",
        32,
        4096,
        14_336,
        32,
        8,
        128,
        128_256,
        131_072,
        5e5,
        tie_word_embeddings=False,
    ),
)
TINY = ModelConfig("tiny", 2, 64, 128, 4, 2, 32, 300, 512, qk_norm=True)


def random_model(config: ModelConfig, bench: Bench, dtype: torch.dtype | None = None) -> Model:
    """Seeded random weights, drawn on the device: an 8B model takes seconds, not minutes."""
    dtype = dtype or bench.dtype
    generator = torch.Generator(bench.device).manual_seed(0)

    def weight(rows: int, columns: int) -> torch.Tensor:
        w = torch.empty(rows, columns, dtype=dtype, device=bench.device)
        return w.normal_(0, columns**-0.5, generator=generator)

    def ones(size: int) -> torch.Tensor:
        return torch.ones(size, dtype=dtype, device=bench.device)

    c, dim = config, config.head_dim
    q, kv = c.num_attention_heads * dim, c.num_key_value_heads * dim
    embedding = weight(c.vocab_size, c.hidden_size)
    layers = [
        Layer(
            input_norm=ones(c.hidden_size),
            qkv=PlainLinear(weight(q + 2 * kv, c.hidden_size)),
            q_norm=ones(dim) if c.qk_norm else None,
            k_norm=ones(dim) if c.qk_norm else None,
            output=PlainLinear(weight(c.hidden_size, q)),
            mlp_norm=ones(c.hidden_size),
            gate_up=PlainLinear(weight(2 * c.intermediate_size, c.hidden_size)),
            down=PlainLinear(weight(c.hidden_size, c.intermediate_size)),
        )
        for _ in range(c.num_hidden_layers)
    ]
    head = embedding if c.tie_word_embeddings else weight(c.vocab_size, c.hidden_size)
    return Model(
        config=c,
        tokenizer=ByteTokenizer(),
        embedding=embedding,
        layers=layers,
        norm=ones(c.hidden_size),
        head=PlainLinear(head),
        dtype=dtype,
        device=bench.device,
    )


def make_runner(bench: Bench, model: Model, batch: int, context: int, tokens: int) -> CudaRunner:
    """A runner whose pool holds `batch` requests of `context` tokens, random ones.

    Fresh memory may hold NaN, and zeros would draw less power and run faster than real data.
    """
    config = EngineConfig(
        max_num_batched_tokens=tokens,
        max_num_seqs=batch,
        block_size=BLOCK,
        num_blocks=batch * cdiv(context, BLOCK),
        max_model_len=context,
    )
    runner = CudaRunner(model, config, "triton")
    runner.kv.k.normal_()
    runner.kv.v.normal_()
    return runner


def step_plan(batch: int, context: int, queries: int) -> StepPlan:
    """`batch` requests of `context` tokens whose last `queries` are not computed yet."""
    blocks, scheduled = cdiv(context, BLOCK), []
    for r in range(batch):
        request = Request(f"r{r}", [(7 * i + r) % 250 for i in range(context - 1)])
        request.output_token_ids = [r % 250]
        request.num_computed_tokens = context - queries
        request.block_ids = list(range(r * blocks, (r + 1) * blocks))
        scheduled.append((request, queries))
    return StepPlan(scheduled)


def weight_bytes(model: Model) -> int:
    """Bytes of weights a step reads: everything but an embedding that is not the head."""
    parts: list[torch.Tensor] = [model.head.weight]  # type: ignore[attr-defined]
    for layer in model.layers:
        linears = (layer.qkv, layer.output, layer.gate_up, layer.down)
        parts += [linear.weight for linear in linears]  # type: ignore[attr-defined]
        parts += [layer.input_norm, layer.mlp_norm]
    return sum(t.numel() * t.element_size() for t in parts)


def count_nodes(bench: Bench, runner: CudaRunner, batch: Batch) -> int | None:
    """Kernels (and copies) of one eager step as the profiler counts them; None on the CPU."""
    if not bench.on_cuda:
        return None
    kinds = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile, torch.inference_mode():
        runner._run(batch)
        torch.cuda.synchronize()
    return sum(str(event.device_type).endswith("CUDA") for event in profile.events() or [])


def seconds_of(bench: Bench, runner: CudaRunner, batch: Batch, rounds: int) -> list[float]:
    """Seconds of a forward pass, by events on the card (by the host's clock in tests)."""
    import time

    found = []
    for _ in range(rounds + 3):
        start = time.perf_counter()
        runner.forward(batch)
        timer = runner.timer()
        found.append(timer() if timer else time.perf_counter() - start)
    return found[3:]


def run_decode(bench: Bench) -> Iterator[Row]:
    """One decode step with CUDA graphs against its floor."""
    batches = (2,) if bench.tiny else (1, 8, 32, 64)
    context = 40 if bench.tiny else 1024
    for config in (TINY,) if bench.tiny else MODELS:
        row = {"model": config.name, "context": context}
        if bench.is_over():
            yield {**row, "status": "no time"}
            continue
        error = logits_error(bench, config)
        if error > 5e-2:
            yield {**row, "status": "wrong: not timed", "error": error}
            continue
        model = random_model(config, bench)
        runner = make_runner(bench, model, max(batches), context, max(batches))
        for batch in batches:
            if bench.is_over():
                yield {**row, "batch": batch, "status": "no time"}
                continue
            yield {**row, "error": error, **_decode_row(bench, runner, batch, context)}
        del model, runner


def _decode_row(bench: Bench, runner: CudaRunner, batch: int, context: int) -> Row:
    step = runner.build(step_plan(batch, context, 1))
    graph = runner.has_graph(step)
    timing = summary(seconds_of(bench, runner, step, bench.rounds if bench.on_cuda else 2))
    config, element = runner.model.config, runner.kv.k.element_size()
    moved = weight_bytes(runner.model)
    moved += batch * context * bytes_per_block(config, 1, element)
    row = {"batch": batch, "status": "ok", **timing.as_row(), "graph": graph}
    row |= {"bytes": moved, "tokens_per_s": batch / timing.median}
    nodes = count_nodes(bench, runner, step)
    read, node = bench.ceilings.get("read"), bench.ceilings.get("node")
    if read:
        row |= {"byte_floor_us": moved / read * 1e6, "of_byte_floor": timing.median * read / moved}
    if read and node and nodes:
        floor = moved / read + nodes * node
        row |= {"nodes": nodes, "floor_us": floor * 1e6, "of_floor": timing.median / floor}
    return row


def logits_error(bench: Bench, config: ModelConfig) -> float:
    """Two layers of the shape, a chunk and a decode: kernels against float64 torch attention."""
    short = replace(config, num_hidden_layers=2, vocab_size=min(config.vocab_size, 4096))
    model = random_model(short, bench)
    runner = make_runner(bench, model, 2, 48, 96)
    exact = exact_copy(model)
    kv = KVCache(short, runner.config.num_blocks, BLOCK, dtype=torch.float64, device=bench.device)
    from llmlab.engine.attention import paged_attention
    from llmlab.engine.batch import build_batch

    worst = 0.0
    for context, queries in ((20, 20), (47, 27), (48, 1)):
        plan = step_plan(2, context, queries)
        for request, _ in plan.scheduled:  # every step knows the same tokens
            request.prompt_token_ids = [(7 * i) % 250 for i in range(context)]
            request.output_token_ids = []
            first = 3 * int(request.request_id[1:])
            request.block_ids = [first, first + 1, first + 2]
        logits = runner.forward(runner.build(plan))
        with torch.inference_mode():
            spec = exact.forward(build_batch(plan, BLOCK, device=bench.device), kv, paged_attention)
        worst = max(worst, relative_error(logits, spec))
    return worst


def exact_copy(model: Model) -> Model:
    """The same weights in float64."""

    def linear(x: Any) -> PlainLinear:
        return PlainLinear(x.weight.double())

    def vector(x: torch.Tensor | None) -> Any:
        return None if x is None else x.double()

    layers = [
        Layer(
            vector(layer.input_norm),
            linear(layer.qkv),
            vector(layer.q_norm),
            vector(layer.k_norm),
            linear(layer.output),
            vector(layer.mlp_norm),
            linear(layer.gate_up),
            linear(layer.down),
        )
        for layer in model.layers
    ]
    return replace(
        model,
        embedding=model.embedding.double(),
        layers=layers,
        norm=vector(model.norm),
        head=linear(model.head),
        dtype=torch.float64,
    )


def run_prefill(bench: Bench) -> Iterator[Row]:
    """Prefill of one chunk: tokens per second, and the share of the matrix rate."""
    sizes = (12,) if bench.tiny else (2048, 8192)
    for config in (TINY,) if bench.tiny else MODELS:
        if bench.is_over():
            yield {"model": config.name, "status": "no time"}
            continue
        model = random_model(config, bench)
        runner = make_runner(bench, model, 1, max(sizes), max(sizes))
        for tokens in sizes:
            step = runner.build(step_plan(1, tokens, tokens))
            timing = summary(seconds_of(bench, runner, step, 20 if bench.on_cuda else 1))
            flops = prefill_flops(config, tokens)
            yield {
                "model": config.name,
                "tokens": tokens,
                "status": "ok",
                **timing.as_row(),
                "tokens_per_s": tokens / timing.median,
                "share": bench.share("gemm", flops / timing.median),
            }
        del model, runner


def prefill_flops(config: ModelConfig, tokens: int) -> int:
    """Products of every layer for all tokens, the head for one, attention counted causally."""
    c = config
    q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    layer = c.hidden_size * (2 * q + 2 * kv + 3 * c.intermediate_size)
    attention = 4 * q * tokens * (tokens + 1) // 2
    products = 2 * (tokens * c.num_hidden_layers * layer + c.hidden_size * c.vocab_size)
    return products + c.num_hidden_layers * attention

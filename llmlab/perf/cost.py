"""FLOPs and bytes of one engine step, by part, from its plan and the model's shape.

Counted (one multiply-add = 2 FLOPs):

  projections  q, k, v, o and the norms' weights: all weights once per step, whatever the batch
  mlp          gate, up, down, or the experts the step's tokens are expected to touch
  attention    q.k and p.v over each token's causal context; keys and values read once per request
  kv_write     keys and values of the step's own tokens
  embedding    one row of the table per token
  head         the vocabulary product, only for tokens that are sampled

Not counted: activations (they stay in cache or are small beside weights at these sizes),
softmax, norms and rotary arithmetic (elementwise), sampling. This module knows no clock and no
device. No torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from llmlab.config import ModelConfig, require, require_int
from llmlab.perf.hardware import DTYPE_BYTES
from llmlab.sched.plan import StepPlan
from llmlab.trace import Trace


@dataclass(frozen=True)
class Precision:
    """How weights and cached keys and values are stored."""

    weights: str = "bf16"
    kv: str = "bf16"

    def __post_init__(self) -> None:
        for name in ("weights", "kv"):
            value = getattr(self, name)
            allowed = f"one of {', '.join(DTYPE_BYTES)}"
            require(value in DTYPE_BYTES, "Precision", name, value, allowed)


@dataclass(frozen=True)
class Parameters:
    """Parameter counts by part, from the shape alone. `head` is 0 where it is the embedding."""

    embedding: int
    projections: int
    mlp: int
    norms: int
    head: int

    @property
    def total(self) -> int:
        return self.embedding + self.projections + self.mlp + self.norms + self.head


def count_parameters(model: ModelConfig) -> Parameters:
    """Count the weights of a Llama- or Qwen-style decoder."""
    m = model
    projections = _projection_weights(m)
    if m.attention_bias:
        projections += (m.num_attention_heads + 2 * m.num_key_value_heads) * m.head_dim
    norms = 2 * m.hidden_size + (2 * m.head_dim if m.qk_norm else 0)
    table = m.vocab_size * m.hidden_size
    return Parameters(
        embedding=table,
        projections=m.num_hidden_layers * projections,
        mlp=m.num_hidden_layers * _mlp_parameters(m, m.num_experts),
        norms=m.num_hidden_layers * norms + m.hidden_size,
        head=0 if m.tie_word_embeddings else table,
    )


def _projection_weights(m: ModelConfig) -> int:
    """q, k, v and o of one layer, without biases."""
    return 2 * m.hidden_size * (m.num_attention_heads + m.num_key_value_heads) * m.head_dim


def _mlp_parameters(m: ModelConfig, experts: int) -> int:
    """One layer's MLP, or its router and that many of its experts."""
    if not m.num_experts:
        return 3 * m.hidden_size * m.intermediate_size
    return experts * _expert_parameters(m) + m.hidden_size * m.num_experts


def _expert_parameters(m: ModelConfig) -> int:
    return 3 * m.hidden_size * m.moe_intermediate_size


def active_parameters(model: ModelConfig) -> int:
    """Parameters one token uses: all of them, but only the routed experts of an MoE."""
    idle = model.num_experts - model.num_experts_per_tok if model.num_experts else 0
    unused = model.num_hidden_layers * idle * _expert_parameters(model)
    return count_parameters(model).total - unused


def expected_experts(num_experts: int, per_token: int, tokens: float) -> float:
    """Expected distinct experts a layer reads for `tokens` tokens: E (1 - (1 - k/E)^tokens).

    Assumes that tokens route independently and uniformly; real routers are neither, so real
    steps read somewhat fewer.
    """
    return num_experts * (1.0 - float((1.0 - per_token / num_experts) ** tokens))


def kv_bytes_per_token(model: ModelConfig, kv_dtype: str = "bf16") -> float:
    """Bytes that one token's keys and values take: 2 layers kv_heads head_dim bytes."""
    heads = model.num_key_value_heads * model.head_dim
    return 2 * model.num_hidden_layers * heads * DTYPE_BYTES[kv_dtype]


def weight_bytes(model: ModelConfig, weight_dtype: str = "bf16") -> float:
    """Bytes of all weights in memory."""
    return count_parameters(model).total * DTYPE_BYTES[weight_dtype]


@dataclass(frozen=True, slots=True)
class StepShape:
    """What a step's cost depends on.

    num_tokens: tokens computed; num_sampled: tokens that go through the head; num_requests:
    requests in the step; attention_pairs: (query, key) pairs under the causal mask;
    kv_read_tokens: cached tokens read, each request's whole context once.
    """

    num_tokens: int
    num_sampled: int
    num_requests: int
    attention_pairs: int
    kv_read_tokens: int


def step_shape(entries: Iterable[tuple[int, int, bool]]) -> StepShape:
    """Add up (n tokens, num_computed_tokens before, sampled?) of each request in a step."""
    tokens = sampled = requests = pairs = kv_read = 0
    for n, computed, samples in entries:
        tokens += n
        sampled += samples
        requests += 1
        pairs += n * computed + n * (n + 1) // 2
        kv_read += computed + n
    return StepShape(tokens, sampled, requests, pairs, kv_read)


def plan_shape(plan: StepPlan) -> StepShape:
    """Shape of a plan that was not committed yet."""
    return step_shape(
        (n, r.num_computed_tokens, r.num_computed_tokens + n == r.num_tokens)
        for r, n in plan.scheduled
    )


def trace_shapes(trace: Trace) -> list[StepShape]:
    """Shape of every step of a trace, in order; which tokens were sampled is worked out.

    ValueError if a step names a request there is none of.
    """
    known: dict[tuple[str, str], int] = {}  # a worker knows what it has sampled itself
    shapes = []
    for step in trace.steps:
        entries = []
        for name, n, computed, _ in step.scheduled:
            if name not in trace.requests:
                raise ValueError(
                    f"step {step.index} schedules {name!r}: must be a request of the trace"
                )
            key = step.worker, name
            tokens = known.setdefault(key, trace.requests[name].prompt_tokens or 0)
            samples = computed + n == tokens
            known[key] += samples
            entries.append((n, computed, samples))
        shapes.append(step_shape(entries))
    return shapes


@dataclass(frozen=True)
class PartCost:
    """FLOPs and bytes moved by one part of a step."""

    flops: float
    bytes: float


@dataclass(frozen=True)
class StepCost:
    """Cost of a step by part, on each of `tensor_parallel` devices."""

    parts: dict[str, PartCost]

    @property
    def flops(self) -> float:
        return sum(part.flops for part in self.parts.values())

    @property
    def bytes(self) -> float:
        return sum(part.bytes for part in self.parts.values())

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.bytes


@dataclass(frozen=True)
class CostModel:
    """Coefficients of a step's cost for one model, precision and degree of tensor parallelism.

    Tensor parallelism splits every matrix, every head and the vocabulary evenly, so each device
    has 1/tp of FLOPs and bytes; key-value heads that cannot be split further are repeated.
    """

    model: ModelConfig
    precision: Precision = field(default_factory=Precision)
    tensor_parallel: int = 1

    def __post_init__(self) -> None:
        heads = self.model.num_attention_heads
        require_int("CostModel", "tensor_parallel", self.tensor_parallel, 1, heads)
        splits = heads % self.tensor_parallel == 0
        allowed = f"a divisor of num_attention_heads ({heads})"
        require(splits, "CostModel", "tensor_parallel", self.tensor_parallel, allowed)

    @cached_property
    def parameters(self) -> Parameters:
        return count_parameters(self.model)

    @cached_property
    def weight_byte(self) -> float:
        """Bytes of one weight."""
        return DTYPE_BYTES[self.precision.weights]

    @cached_property
    def kv_bytes(self) -> float:
        """Bytes of one token's keys and values on one device."""
        held = max(1.0, self.model.num_key_value_heads / self.tensor_parallel)
        share = held / self.model.num_key_value_heads
        return kv_bytes_per_token(self.model, self.precision.kv) * share

    @cached_property
    def projection_flops(self) -> float:
        """Per token, q, k, v and o of all layers; a bias adds no product."""
        per_layer = 2 * _projection_weights(self.model)
        return self.model.num_hidden_layers * per_layer / self.tensor_parallel

    @cached_property
    def projection_bytes(self) -> float:
        """Of all layers, with biases and norms; read once per step."""
        counts = self.parameters
        return (counts.projections + counts.norms) * self.weight_byte / self.tensor_parallel

    @cached_property
    def mlp_flops(self) -> float:
        """Per token, over all layers; an MoE token uses its routed experts and the router."""
        per_layer = 2 * _mlp_parameters(self.model, self.model.num_experts_per_tok)
        return self.model.num_hidden_layers * per_layer / self.tensor_parallel

    def mlp_bytes(self, num_tokens: float) -> float:
        """Weights of the MLPs that `num_tokens` tokens read, over all layers."""
        m = self.model
        if not m.num_experts:
            return self.parameters.mlp * self.weight_byte / self.tensor_parallel
        experts = expected_experts(m.num_experts, m.num_experts_per_tok, num_tokens)
        per_layer = experts * _expert_parameters(m) + m.hidden_size * m.num_experts
        return m.num_hidden_layers * per_layer * self.weight_byte / self.tensor_parallel

    @cached_property
    def pair_flops(self) -> float:
        """Per (query, key) pair, over all layers: q.k and p.v of every query head."""
        m = self.model
        per_layer = 4 * m.num_attention_heads * m.head_dim
        return m.num_hidden_layers * per_layer / self.tensor_parallel

    @cached_property
    def embedding_bytes(self) -> float:
        """Per token: one row of the table."""
        return self.model.hidden_size * self.weight_byte

    @cached_property
    def head_flops(self) -> float:
        """Per sampled token."""
        return 2 * self.model.vocab_size * self.model.hidden_size / self.tensor_parallel

    @cached_property
    def head_bytes(self) -> float:
        """The table, its own or the embedding's; read by a step that samples."""
        return self.parameters.embedding * self.weight_byte / self.tensor_parallel

    def cost(self, shape: StepShape) -> StepCost:
        """FLOPs and bytes of a step of this shape, by part."""
        tokens, sampled = shape.num_tokens, shape.num_sampled
        parts = {
            "projections": PartCost(tokens * self.projection_flops, self.projection_bytes),
            "mlp": PartCost(tokens * self.mlp_flops, self.mlp_bytes(tokens)),
            "attention": PartCost(
                shape.attention_pairs * self.pair_flops, shape.kv_read_tokens * self.kv_bytes
            ),
            "kv_write": PartCost(0.0, tokens * self.kv_bytes),
            "embedding": PartCost(0.0, tokens * self.embedding_bytes),
            "head": PartCost(sampled * self.head_flops, self.head_bytes if sampled else 0.0),
        }
        return StepCost(parts)

"""Laws of the cost model: counts by hand, scaling, and the shapes of real models."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmlab.config import ModelConfig
from llmlab.perf.cost import (
    CostModel,
    Precision,
    StepShape,
    active_parameters,
    count_parameters,
    expected_experts,
    kv_bytes_per_token,
    plan_shape,
    step_shape,
    trace_shapes,
    weight_bytes,
)
from llmlab.perf.models import load_model_config, models_catalog
from llmlab.sched.plan import StepPlan
from llmlab.sched.request import Request
from llmlab.trace import RequestRecord, StepRecord, Trace

# Small enough to count by hand: one layer, 2 query heads on 1 key-value head of width 3.
HAND = ModelConfig(
    name="hand",
    num_hidden_layers=1,
    hidden_size=4,
    intermediate_size=5,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=3,
    vocab_size=10,
    max_position_embeddings=64,
)


def test_parameters_counted_from_the_shape_match_the_published_count():
    for name, entry in models_catalog().entries.items():
        counted = count_parameters(load_model_config(name)).total
        assert counted == pytest.approx(entry["published_parameters"], rel=0.01), name


def test_the_mixture_of_experts_uses_3_3_billion_parameters_per_token():
    model = load_model_config("qwen3-30b-a3b")
    published = models_catalog().entries["qwen3-30b-a3b"]["published_active_parameters"]
    assert active_parameters(model) == pytest.approx(published, rel=0.02)


def test_hand_counted_parameters():
    counts = count_parameters(HAND)
    assert counts.projections == 4 * 6 + 2 * (4 * 3) + 6 * 4  # q, k and v, o
    assert counts.mlp == 3 * 4 * 5
    assert counts.norms == 2 * 4 + 4
    assert (counts.embedding, counts.head) == (40, 0)
    assert counts.total == 72 + 60 + 12 + 40


def test_a_head_of_its_own_and_biases_are_counted():
    untied = ModelConfig(
        **{**HAND.__dict__, "tie_word_embeddings": False, "attention_bias": True, "qk_norm": True}
    )
    extra = count_parameters(untied).total - count_parameters(HAND).total
    assert extra == 40 + (6 + 3 + 3) + 2 * 3


def test_hand_worked_decode_step():
    # One request with 7 cached tokens computes its 8th, in fp32.
    cost = CostModel(HAND, Precision("fp32", "fp32")).cost(step_shape([(1, 7, True)]))
    assert cost.parts["projections"].flops == 2 * 72
    assert cost.parts["projections"].bytes == (72 + 12) * 4
    assert cost.parts["mlp"].flops == 2 * 60
    assert cost.parts["mlp"].bytes == 60 * 4
    assert cost.parts["attention"].flops == 2 * (2 * 3 * 8) * 2  # q.k and p.v, 2 heads, 8 keys
    assert cost.parts["attention"].bytes == 8 * (2 * 3) * 4
    assert cost.parts["kv_write"].bytes == 6 * 4
    assert cost.parts["embedding"].bytes == 4 * 4
    assert cost.parts["head"].flops == 2 * 40
    assert cost.parts["head"].bytes == 40 * 4
    assert cost.flops == 144 + 120 + 192 + 80
    assert cost.intensity == cost.flops / cost.bytes


def test_hand_worked_prefill_chunk():
    # Tokens 3..5 of a longer prompt: token i sees i keys, so 3 + 4 + 5 pairs; no token sampled.
    shape = step_shape([(3, 2, False)])
    assert shape == StepShape(3, 0, 1, 12, 5)
    cost = CostModel(HAND, Precision("fp16", "int8")).cost(shape)
    assert cost.parts["attention"].flops == 12 * 4 * 2 * 3
    assert cost.parts["attention"].bytes == 5 * 6 * 1
    assert cost.parts["head"].flops == cost.parts["head"].bytes == 0
    assert cost.parts["projections"].flops == 3 * 144


def test_weights_are_read_once_whatever_the_batch():
    coster = CostModel(load_model_config("llama-3.1-8b"))
    one = coster.cost(step_shape([(1, 100, True)]))
    many = coster.cost(step_shape([(1, 100, True)] * 64))
    for part in ("projections", "mlp", "head"):
        assert one.parts[part].bytes == many.parts[part].bytes
        assert many.parts[part].flops == pytest.approx(64 * one.parts[part].flops)
    total = one.parts["projections"].bytes + one.parts["mlp"].bytes + one.parts["head"].bytes
    embedding = 128256 * 4096 * 2  # the table is not read, but for one row a token
    assert total == weight_bytes(coster.model) - embedding


def test_grouped_queries_read_fewer_keys_but_do_the_same_arithmetic():
    grouped = load_model_config("llama-3.1-8b")
    full = ModelConfig(**{**grouped.__dict__, "num_key_value_heads": 32})
    shape = step_shape([(1, 999, True)])
    a, b = CostModel(grouped).cost(shape), CostModel(full).cost(shape)
    assert b.parts["attention"].bytes == 4 * a.parts["attention"].bytes
    assert b.parts["attention"].flops == a.parts["attention"].flops


def test_key_value_bytes_per_token():
    assert kv_bytes_per_token(load_model_config("llama-3.1-8b"), "fp16") == 131_072
    assert kv_bytes_per_token(load_model_config("llama-3.1-70b"), "fp8") == 163_840
    assert kv_bytes_per_token(load_model_config("smollm2-135m"), "fp32") == 46_080
    assert kv_bytes_per_token(load_model_config("qwen2.5-0.5b"), "int4") == 3_072


def test_distinct_experts_of_the_published_model():
    assert expected_experts(128, 8, 1) == pytest.approx(8)
    assert expected_experts(128, 8, 64) == pytest.approx(125.94, abs=0.005)


@given(st.integers(1, 256), st.data())
def test_distinct_experts_stay_between_one_tokens_and_all(experts, data):
    per_token = data.draw(st.integers(1, experts))
    tokens = data.draw(st.integers(1, 500))
    expected = expected_experts(experts, per_token, tokens)
    assert per_token - 1e-9 <= expected <= min(experts, per_token * tokens) + 1e-9


def test_expert_weights_read_grow_about_tenfold_from_1_to_64_users():
    coster = CostModel(load_model_config("qwen3-30b-a3b"))
    one = coster.cost(step_shape([(1, 0, True)]))
    many = coster.cost(step_shape([(1, 0, True)] * 64))

    def weights(cost):
        return sum(cost.parts[part].bytes for part in ("projections", "mlp", "head"))

    assert 9 < weights(many) / weights(one) < 11
    assert many.parts["mlp"].flops == pytest.approx(64 * one.parts["mlp"].flops)


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), min_size=1, max_size=8),
    st.sampled_from([1, 2]),
)
def test_costs_add_up_over_requests_apart_from_weights(entries, tp):
    coster = CostModel(HAND, Precision("fp32", "fp32"), tp)
    together = coster.cost(step_shape([(n, c, False) for n, c in entries]))
    apart = [coster.cost(step_shape([(n, c, False)])) for n, c in entries]
    for part in ("attention", "kv_write", "embedding"):
        assert together.parts[part].bytes == pytest.approx(sum(c.parts[part].bytes for c in apart))
    assert together.flops == pytest.approx(sum(c.flops for c in apart))


def test_chunks_of_a_prompt_do_the_arithmetic_of_the_whole_prompt():
    coster = CostModel(HAND)
    whole = coster.cost(step_shape([(10, 0, True)]))
    chunks = [coster.cost(step_shape([e])) for e in [(4, 0, False), (4, 4, False), (2, 8, True)]]
    assert sum(c.flops for c in chunks) == pytest.approx(whole.flops)
    assert sum(c.bytes for c in chunks) > whole.bytes  # each chunk reads weights and context again


def test_tensor_parallel_splits_the_work_and_repeats_heads_that_cannot_split():
    model = load_model_config("llama-3.1-70b")
    shape = step_shape([(1, 5000, True)] * 8)
    one, two = CostModel(model).cost(shape), CostModel(model, tensor_parallel=2).cost(shape)
    for part in ("projections", "mlp", "attention", "head"):
        assert two.parts[part].flops == pytest.approx(one.parts[part].flops / 2)
    assert two.parts["attention"].bytes == pytest.approx(one.parts["attention"].bytes / 2)
    sixteen = CostModel(model, tensor_parallel=16).cost(shape)  # 8 key-value heads
    assert sixteen.parts["attention"].bytes == pytest.approx(one.parts["attention"].bytes / 8)


def test_the_shape_of_a_plan_says_which_of_its_tokens_are_sampled():
    decoding = Request("a", [1] * 5, output_token_ids=[7], num_computed_tokens=5)
    chunk = Request("b", [1] * 9, num_computed_tokens=2)
    plan = StepPlan([(decoding, 1), (chunk, 3)])
    assert plan_shape(plan) == step_shape([(1, 5, True), (3, 2, False)])


def test_shapes_read_from_a_trace_know_which_tokens_were_sampled():
    trace = Trace(requests={n: RequestRecord(n, prompt_tokens=p) for n, p in [("a", 4), ("b", 6)]})
    steps = [
        [("a", 4, 0, False), ("b", 2, 0, False)],  # a is sampled, b is a chunk
        [("a", 1, 4, True), ("b", 4, 2, False)],  # both
        [("b", 1, 6, True)],  # a was preempted
        [("a", 5, 0, False)],  # a computes again: a chunk that ends short of its 6 known tokens
        [("a", 1, 5, False)],
    ]
    trace.steps = [StepRecord(i, i, i + 1, s) for i, s in enumerate(steps)]
    assert [shape.num_sampled for shape in trace_shapes(trace)] == [1, 2, 1, 0, 1]


def test_a_step_for_a_request_there_is_none_of_is_refused():
    trace = Trace(steps=[StepRecord(3, 1, 5, [("ghost", 1, 0, False)])])
    with pytest.raises(ValueError, match="step 3 schedules 'ghost'"):
        trace_shapes(trace)


@pytest.mark.parametrize(("field", "bad"), [("weights", "fp12"), ("kv", "")])
def test_an_unknown_dtype_lists_the_known_ones(field, bad):
    with pytest.raises(ValueError, match=f"{field} = '{bad}'.*fp32"):
        Precision(**{field: bad})


def test_a_degree_that_does_not_split_the_heads_is_refused():
    with pytest.raises(ValueError, match="tensor_parallel = 3"):
        CostModel(load_model_config("llama-3.1-8b"), tensor_parallel=3)

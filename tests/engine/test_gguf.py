"""A GGUF file written here from known weights is read back as the same model."""

from __future__ import annotations

from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch

from llmlab.engine import load_model
from llmlab.engine.gguf_file import open_gguf
from llmlab.engine.load import build_model
from llmlab.engine.tokenizer import byte_level_alphabet
from llmlab.engine.weights import TINY, random_source

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(path, config, *, arch="llama", pre="smollm", rope="none", quantise=False, bos=False):
    """A random model of this shape in llama.cpp's names and row order; its source is returned."""
    source = random_source(config, seed=5)
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    if rope != "none":
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope))
    tokens = [*byte_level_alphabet().values(), "ab", "<|bos|>", "<|end|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 257 + [3] * 2)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(258)
    if bos:
        writer.add_bos_token_id(257)
        writer.add_add_bos_token(True)
    for name in source.names:
        stem, kind = name.rsplit(".", 1)
        layer = ""
        if stem.startswith("model.layers."):
            _, _, index, stem = stem.split(".", 3)
            layer = f"blk.{index}."
        tensor = source.get(name).float()
        if arch == "llama" and NAMES[stem] in ("attn_q", "attn_k"):
            rows, columns = tensor.shape
            halves = tensor.view(rows // config.head_dim, 2, config.head_dim // 2, columns)
            tensor = halves.transpose(1, 2).reshape(rows, columns)
        values = np.ascontiguousarray(tensor.numpy())
        if quantise and values.ndim == 2:
            kind_of = gguf.GGMLQuantizationType.Q8_0
            packed = gguf.quantize(values, kind_of)
            writer.add_tensor(f"{layer}{NAMES[stem]}.{kind}", packed, raw_dtype=kind_of)
        else:
            writer.add_tensor(f"{layer}{NAMES[stem]}.{kind}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return source


QWEN3 = replace(TINY, qk_norm=True, head_dim=32, tie_word_embeddings=True)


@pytest.mark.parametrize(("arch", "config"), [("llama", TINY), ("qwen3", QWEN3)])
def test_a_gguf_file_is_the_model_that_was_written(tmp_path, cache, arch, config, logits_of):
    expected = build_model(write_gguf(tmp_path / "m.gguf", config, arch=arch))
    model = load_model(tmp_path / "m.gguf", exact=True)
    assert replace(model.config, name="x") == replace(config, name="x")
    ids = [72, 101, 108, 108, 111]
    torch.testing.assert_close(
        logits_of(model, ids), logits_of(expected, ids), atol=1e-4, rtol=1e-4
    )
    assert model.tokenizer.eos_token_id == 258


def test_quantised_weights_are_close_to_what_was_quantised(tmp_path, cache):
    source = write_gguf(tmp_path / "m.gguf", TINY, quantise=True)
    back = open_gguf(tmp_path / "m.gguf")
    for name in source.names:
        error = (back.get(name) - source.get(name).float()).abs().max()
        assert error <= source.get(name).abs().max() / 127, name


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("smollm", ["ab", "Ġ", "1", "2", "Ġ", "3", "4"]),
        ("gpt-2", ["ab", "Ġ12", "Ġ34"]),
        ("qwen2", ["ab", "Ġ", "1", "2", "Ġ", "3", "4"]),
        ("llama-bpe", ["ab", "Ġ", "12", "Ġ", "34"]),
    ],
)
def test_digits_are_cut_as_the_model_was_trained(tmp_path, pre, words):
    write_gguf(tmp_path / "m.gguf", TINY, pre=pre)
    backend = open_gguf(tmp_path / "m.gguf").tokenizer.backend
    assert [w for w, _ in backend.pre_tokenizer.pre_tokenize_str("ab 12 34")] == words


def test_a_model_that_wants_a_first_token_gets_it_in_prompts_but_not_twice_in_chats(tmp_path):
    write_gguf(tmp_path / "m.gguf", TINY, bos=True)
    tokenizer = open_gguf(tmp_path / "m.gguf").tokenizer
    assert tokenizer.encode("ab") == [257, 256]
    assert 257 not in tokenizer.chat([{"role": "user", "content": "ab"}])


def test_a_file_that_was_cut_off_is_called_so(tmp_path, cache):
    """A download that broke off has a whole header: its tensors are what is missing."""
    write_gguf(tmp_path / "m.gguf", TINY)
    whole = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(whole[: len(whole) * 3 // 4])
    with pytest.raises(ValueError, match=r"ends before its tensors do.*Download it again"):
        load_model(tmp_path / "m.gguf")


def test_what_cannot_be_run_is_refused_by_name(tmp_path, cache):
    write_gguf(tmp_path / "m.gguf", TINY, rope="yarn")
    with pytest.raises(ValueError, match="rope scaling"):
        load_model(tmp_path / "m.gguf")
    write_gguf(tmp_path / "n.gguf", TINY, arch="gptneox")
    with pytest.raises(ValueError, match=r"architecture = 'gptneox'.*llama"):
        load_model(tmp_path / "n.gguf")
    write_gguf(tmp_path / "p.gguf", TINY, pre="klingon")
    with pytest.raises(ValueError, match=r"pre = 'klingon'.*llama-bpe"):
        load_model(tmp_path / "p.gguf")

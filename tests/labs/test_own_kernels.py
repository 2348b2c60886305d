"""A learner's Triton kernels: right ones serve requests, each usual mistake is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from llmlab.config import EngineConfig
from llmlab.engine import Engine, load_model
from llmlab.engine.attention import paged_attention
from llmlab.kernels.paged_attention import paged_attention_spec
from llmlab.labs.bandwidth import Shape, decode_inputs, must_move
from llmlab.labs.decode_cases import CASES, MISTAKES, reference
from llmlab.labs.kernel_checks import check_decode, check_kv_write
from llmlab.labs.own_kernels import (
    attention_of,
    count_loads,
    decode_attention,
    runner_with,
    show_loads,
)
from llmlab.sched import SamplingParams
from tests.labs.cells import run_cells
from tests.labs.own_kernels_source import DECODE, WRITE, made

ROOT = Path(__file__).resolve().parents[2]
DEAD = 'score = tl.where(live, score, float("-inf"))'
K_LOAD = "tl.load(k_cache + at, mask=live[:, None], other=0.0)"
V_LOAD = "tl.load(v_cache + at, mask=live[:, None], other=0.0)"


def test_right_ones_pass():
    for result in (check_decode(made(DECODE)), check_kv_write(made(WRITE))):
        assert result.state == "correct", result
        assert result.score == 1.0


def test_the_reference_is_the_kernels_own_spec():
    for case in CASES[:4]:
        rows = torch.arange(len(case.context_len) + 1)
        arguments = (case.q, case.k_cache, case.v_cache, rows, case.context_len, case.block_table)
        torch.testing.assert_close(reference(case), paged_attention_spec(*arguments))


WRONG_DECODES = [
    ([(V_LOAD, "tl.load(v_cache + at)")], "gives NaN: it loads slots that no token owns"),
    (
        [(K_LOAD, "tl.load(k_cache + at)"), (V_LOAD, "tl.load(v_cache + at)"), (DEAD, "")],
        "gives NaN: it loads slots that no token owns",
    ),
    ([(V_LOAD, V_LOAD.replace(", other=0.0", ""))], "without other=0.0"),
    ([(DEAD, "")], "counts masked lanes"),
    ([("(block * PAGE + p % PAGE)", "p")], "the block table says where p lies"),
    ([("r * M + p // PAGE, mask=live, other=0", "r * M")], "the table's first entry only"),
    ([("block_table + r * M", "block_table")], "row 0 of the block table"),
    ([(" * scale", "")], "leaves out the scale"),
    ([(" * scale", " * scale * scale")], "1 / sqrt(D)"),
    ([("head // (HEADS // KV_HEADS)", "head % KV_HEADS")], "heads share in groups"),
    ([("head // (HEADS // KV_HEADS)", "head")], "for a KV head"),
    ([("context, BLOCK_N)", "BLOCK_N, BLOCK_N)")], "folds the first tile only"),
    ([("p < context", "p < context - 1")], "leaves out the newest key"),
    (
        [("load(context_len + r)", "load(context_len + r)\n    context = context // PAGE * PAGE")],
        "drops the last, partly filled block",
    ),
    ([("tl.maximum(m, tl.max(score, 0))", "0.0")], "take the largest score so far off"),
    ([("shrink = tl.exp(m - m_new)", "shrink = 1.0")], "never shrinks"),
    ([("acc * shrink", "acc")], "shrinks the sum but not acc"),
    ([("total * shrink", "total")], "shrinks acc but not the sum"),
    ([("tl.exp(", "tl.exp2(")], "log2(e)"),
    ([("(acc / total)", "acc")], "does not divide"),
    ([("* KV_HEADS + kv_head", "* HEADS * 64 + kv_head")], "goes outside its tensors"),
    ([("out + (r * HEADS + head)", "out + (r * HEADS)")], "stores nothing, or not all"),
    ([("    tl.store(out", "    tl.store(k_cache + d, acc)\n    tl.store(out")], "only reads"),
    ([("tl.zeros", "tl.zeross")], "AttributeError"),
    ([("p % PAGE) *", "p % PAGE + 1) *")], ""),
]


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "said"), WRONG_DECODES)
def test_each_usual_mistake_of_a_decode_is_named(changes, said):
    result = check_decode(made(DECODE, *changes))
    assert result.state == "incorrect"
    assert said in result.message


@pytest.mark.slow
def test_sums_in_half_precision_are_noticed():
    half = [(".to(tl.float32)\n    context", "\n    context"), (f"{K_LOAD}.to(tl.float32)", K_LOAD)]
    result = check_decode(made(DECODE, *half))
    assert "cast to float32" in result.message


@pytest.mark.slow
def test_no_two_mistakes_compute_the_same_everywhere():
    """Else the second could never be told. (On one case two may agree: there the first is said.)"""
    answers = [
        torch.cat([reference(case, **flags).flatten() for case in CASES[:5]])
        for flags, _ in MISTAKES
    ]
    for i, one in enumerate(answers):
        assert not any(torch.equal(one, other) for other in answers[:i])


K_STORE, V_STORE = "k_cache + slot * ROW + i, ", "v_cache + slot * ROW + i, "
WRONG_WRITES = [
    ([(" & (slot >= 0)", "")], "stores for slot -1"),
    ([("tl.load(slots + t)", "tl.maximum(tl.load(slots + t), 0)")], "padded row into slot 0"),
    ([("(i < ROW) & ", "")], "of 16 lanes only the first 12"),
    ([("i, value, mask=mine", "i, value, mask=slot >= 0")], "which no token of this step owns"),
    ([("tl.load(slots + t)", "t")], "row t into slot t"),
    ([(f"{K_STORE}key", f"{K_STORE}value"), (f"{V_STORE}value", f"{V_STORE}key")], "keys into v"),
    ([(f"{V_STORE}value", f"{K_STORE}key")], "nothing into v_cache"),
    ([("(slot >= 0)", "(slot < 0)")], "stores nothing"),
    ([("(i < ROW)", "(i < ROW - 1)")], "leaves"),
    ([("tl.store", "tl.stor")], "AttributeError"),
]


def test_each_usual_mistake_of_a_kv_write_is_named():
    for changes, said in WRONG_WRITES:
        result = check_kv_write(made(WRITE, *changes))
        assert result.state == "incorrect", said
        assert said in result.message


def test_a_stub_is_not_answered_yet_and_a_plain_function_is_no_kernel():
    stub = made(WRITE, ("    slot = tl.load(slots + t)\n", "    raise NotImplementedError('x')\n"))
    assert check_kv_write(stub).state == "not answered yet"
    with pytest.raises(NotImplementedError):
        runner_with(stub)
    assert "@triton.jit" in check_decode(lambda *_: 0).message


# ---------------------------------------------------------------- in the engine


@pytest.fixture(scope="module")
def model():
    return load_model("tiny")


def answers(model, attention, runner=None) -> dict[str, list[int]]:
    config = EngineConfig(max_num_batched_tokens=24, block_size=4, num_blocks=32)
    engine = Engine(model, config, attention=attention, runner=runner)
    tokens: dict[str, list[int]] = {}
    for i, size in enumerate((3, 9, 1)):
        ids = [(7 * i + 3 * p) % 250 for p in range(size)]
        engine.add(ids, SamplingParams(max_tokens=3, ignore_eos=True), request_id=f"r{i}")
    while engine.has_work:
        for out in engine.step():
            tokens.setdefault(out.request_id, []).extend(out.token_ids)
    return tokens


@pytest.mark.slow
def test_the_engine_gives_the_same_greedy_tokens_with_both_kernels(model):
    both = answers(model, attention_of(made(DECODE), block_n=8), runner_with(made(WRITE)))
    assert both == answers(model, "torch")
    short = made(DECODE, ("p < context", "p < tl.maximum(1, context - 2)"))
    assert answers(model, attention_of(short)) != both


def test_the_kernel_alone_is_the_engine_s_attention_on_decodes():
    q, caches, step = decode_inputs(2, 20, Shape(4, 2, 16), torch.float32, "cpu", layers=1)
    mine = decode_attention(made(DECODE))(q, *caches[0], step)
    torch.testing.assert_close(mine, paged_attention(q, *caches[0], step))


# ---------------------------------------------------------------- which bytes


def test_distinct_bytes_are_the_formula_and_a_program_a_head_asks_for_them_g_times():
    contexts = [9, 1, 20]
    mine = count_loads(made(DECODE), contexts, 4, 2, 16)
    theirs = count_loads(None, contexts, 4, 2, 16)
    must = must_move(contexts, 2, 16, 4)
    assert mine.distinct("k_cache", "v_cache") == theirs.distinct("k_cache", "v_cache") == must
    assert mine.loaded("k_cache", "v_cache") == 2 * must
    assert theirs.loaded("k_cache", "v_cache") == must
    assert (mine.programs, theirs.programs) == (12, 6)
    shown = repr(show_loads({"yours": mine, "none": None}))
    assert "2.00 times" in shown
    assert "none" not in shown


# ---------------------------------------------------------------- other processes

FIRST = """
import llmlab.kernels.paged_attention  # Triton is here before the lab, and not set to interpret
import triton
assert not triton.knobs.runtime.interpret
from tests.labs.own_kernels_source import DECODE, WRITE, made
from llmlab.labs.kernel_checks import check_decode, check_kv_write
from llmlab.labs.own_triton import watching, triton
plain = triton.runtime.jit.JITFunction(made(DECODE).fn)  # as on a machine with a GPU
print(*[check_kv_write(made(WRITE)).state, check_decode(made(DECODE)).state,
        check_decode(plain).state], sep="|")
"""


@pytest.mark.slow
def test_a_process_that_has_imported_triton_already_is_mended(tmp_path):
    gone = ("PYTEST_CURRENT_TEST", "TRITON_INTERPRET")
    environment = {name: value for name, value in os.environ.items() if name not in gone}
    environment |= {"LLMLAB_DATA_DIR": str(tmp_path), "LLMLAB_FAST": "1"}
    done = subprocess.run(
        [sys.executable, "-c", FIRST],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "correct|correct|correct"


@pytest.mark.slow
def test_without_triton_every_cell_runs_and_says_why_no_kernel_does(tmp_path):
    """macOS and Windows have no Triton; softmax, formula and questions go on all the same."""
    ran = run_cells(ROOT / "solutions" / "10_triton.ipynb", tmp_path, "triton")
    assert ran.states.count("not answered yet") == 2  # the two kernels
    assert ran.states.count("correct") == 3
    assert "Linux on x86-64 only" in ran.printed

"""`llmlab disagg`, as a learner types it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from llmlab.cli import disagg
from llmlab.engine import disaggregated
from llmlab.engine.pair.result import LayerSent, MovedRequest, PairResult, QueuePoint
from llmlab.trace import Trace

MS = 1_000_000


def run(*args):
    env = {"NO_COLOR": "1", "COLUMNS": "80"}
    return CliRunner().invoke(disagg.app, [str(arg) for arg in args], env=env)


def row(name, where, *, moved=0, end=None, reason=None, outcome="completed"):
    layers = [LayerSent(layer, layer * MS, layer * MS + MS, 512, moved) for layer in range(2)]
    apart = where == "remote"
    return MovedRequest(
        request_id=name,
        prompt_tokens=1800,
        cached_tokens=0,
        where=where,
        moved_tokens=moved,
        bytes=moved * 1024,
        outcome=outcome,
        reason=reason,
        t_queued=0,
        t_asked=0 if apart else None,
        t_prefill_start=0 if apart else None,
        t_prefill_end=end,
        t_first_transfer=0 if apart else None,
        t_last_transfer=2 * MS if apart else None,
        t_first_decode=9 * MS,
        t_end=20 * MS,
        layers=layers if apart else [],
    )


def pair_result(**changes):
    values = {
        "model": "tiny",
        "dtype": "float64",
        "kv_bytes_per_token": 1024,
        "requests": [
            row("req-0", "remote", moved=1800, end=MS + MS // 2),
            row("req-1", "local"),
            row("req-2", "retried", reason="computed here: the wire was cut"),
        ],
        "tokens": [[1, 2], [3, 4], [5, 6]],
        "texts": ["a", "b", "c"],
        "tokens_equal": True,
        "tokens_compared": 6,
        "tokens_within_margin": 0,
        "bytes_moved": 1800 * 1024,
        "bytes_received": 1800 * 1024,
        "bytes_formula": 1800 * 1024,
        "transfer_ms": 2.0,
        "visible_ms": 0.5,
        "queues": {"decode": [QueuePoint(0, 1, 2, 0, 3)]},
        "workers": {"prefill": "ok", "decode": "ok"},
        "leaked_blocks": {"decode": 0},
        "prefill_trace": Trace(),
        "decode_trace": Trace(meta={"source": "engine"}),
        "colocated_trace": None,
    }
    return PairResult(**{**values, **changes})


@pytest.fixture
def fake(monkeypatch):
    """The pair as it was asked for; `answer` is what it gives or raises."""
    asked = {}

    def pair(model, prompts, **given):
        asked.update(given, model=model, prompts=prompts)
        if isinstance(asked.get("answer"), BaseException):
            raise asked["answer"]
        return asked.get("answer") or pair_result()

    monkeypatch.setattr(disaggregated, "run_pair", pair)
    return asked


def test_the_page_fits_80_columns_and_says_what_moved(fake):
    result = run("--model", "tiny")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(result.stdout.split())
    assert "1,800 prompt tokens moved: 1,843,200 bytes, as the formula says" in text
    assert "on the wire for 2 ms" in text
    assert "Tokens are the same as on one engine (6 compared)" in text
    assert "req-2: computed here: the wire was cut" in text
    (moved,) = [line.split() for line in lines if line.startswith("req-0")]
    assert moved == ["req-0", "1,800", "1,800", "1.8", "1.5", "2.0", "0.5", "7.5", "apart"]


def test_json_is_all_there_is_on_stdout(fake):
    found = json.loads(run("--json").stdout)
    for key in ("tokens_equal", "bytes_moved", "bytes_formula", "transfer_ms", "visible_ms"):
        assert key in found
    assert found["requests"][0]["layers"][1]["t_sent"] == MS
    assert found["queues"]["decode"][0]["waiting"] == 1


def test_different_tokens_are_an_error_status(fake):
    fake["answer"] = pair_result(tokens_equal=False)
    result = run()
    assert result.exit_code == 1
    assert "NOT the same" in " ".join(result.stdout.split())


def test_options_reach_the_pair(fake, tmp_path):
    options = ("--prompt", "one", "--prompt", "two", "--no-overlap", "--num-blocks", 9)
    more = ("--max-num-batched-tokens", 32, "--timeout", 3, "--kill", "link:during")
    result = run(*options, *more, "--local-below", 5, "--out", tmp_path / "traces")
    assert result.exit_code == 0, result.output
    assert fake["prompts"] == ["one", "two"]
    assert (fake["overlap"], fake["timeout_s"], fake["kill"]) == (False, 3.0, "link:during")
    assert (fake["config"].num_blocks, fake["prefill_config"].num_blocks) == (9, 1024)
    assert fake["config"].max_num_batched_tokens == 32
    assert [path.name for path in (tmp_path / "traces").iterdir()] == ["decode.jsonl"]


@pytest.mark.parametrize(
    ("answer", "status", "says"),
    [
        (ValueError("prompts = []: must be"), 2, "prompts"),
        (RuntimeError("the prefill worker did not start"), 2, "did not start"),
        (KeyboardInterrupt(), 130, "both workers are stopped"),
    ],
)
def test_what_goes_wrong_has_a_sentence_and_a_status(fake, answer, status, says):
    fake["answer"] = answer
    result = run()
    assert result.exit_code == status
    assert says in result.stderr
    assert result.stdout == ""


def test_bad_input_is_refused_before_anything_starts():
    result = run("--kill", "prefill:sometimes")
    assert result.exit_code == 2
    assert "prefill:during" in result.stderr
    assert run("--local-below", -1).exit_code == 2


def test_the_help_has_examples_and_says_what_it_is_not():
    text = run("--help").stdout
    for part in ("llmlab disagg --no-overlap", "torchrun --nproc-per-node 2", "not at the speed"):
        assert part in text

"""Two real processes: the tokens, the bytes, and a clear end whichever of them is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from llmlab.config import EngineConfig
from llmlab.engine.disaggregated import run_pair
from llmlab.engine.pair.result import LayerSent, MovedRequest, compare
from llmlab.engine.pair.torchrun import place

PROMPTS = [
    [(3 * i * i + 2) % 256 for i in range(200)],
    [7, 8, 9],
    [(5 * i + 1) % 256 for i in range(90)],
]
CONFIG = EngineConfig(max_num_batched_tokens=64, num_blocks=40)
BYTES = 2 * 2 * 2 * 16 * 8


def children() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if "llmlab.engine.pair.process" in " ".join(child.cmdline())
    ]


def tiny_pair(**more):
    values = {"max_tokens": 5, "config": CONFIG, "dtype": "float64", "timeout_s": 20.0}
    result = run_pair("tiny", PROMPTS, **{**values, **more})
    assert children() == []
    return result


@pytest.mark.slow
def test_two_processes_give_the_tokens_of_one_engine():
    seen = []
    result = tiny_pair(progress=lambda *event: seen.append(event))
    assert result.tokens_equal
    assert [len(tokens) for tokens in result.tokens] == [5, 5, 5]
    assert result.tokens_compared == 15
    assert result.bytes_moved == result.bytes_received == result.bytes_formula == 290 * BYTES
    assert [r.where for r in result.requests] == ["remote", "local", "remote"]
    assert result.workers == {"prefill": "ok", "decode": "ok"}
    assert result.leaked_blocks == {"prefill": 0, "decode": 0}
    assert set(result.prefill_trace.requests) == {"req-0", "req-2"}
    assert len(result.decode_trace.requests) == len(result.colocated_trace.requests) == 3
    assert {what for _, _, what in seen} >= {"loading both workers", "decoding"}
    assert all(done <= total for done, total, _ in seen)
    json.dumps(result.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("before", marks=pytest.mark.full),
        pytest.param("during", marks=pytest.mark.slow),
        pytest.param("after", marks=pytest.mark.full),
    ],
)
def test_a_killed_prefill_worker_costs_time_but_no_answer(moment):
    result = tiny_pair(kill=f"prefill:{moment}", compare=moment == "after")
    assert result.workers["prefill"] == "it was killed by signal 9"
    assert result.workers["decode"].startswith("alone since the prefill worker was lost")
    assert [r.outcome for r in result.requests] == ["completed"] * 3
    assert [len(tokens) for tokens in result.tokens] == [5, 5, 5]
    first = result.requests[0]
    assert first.where == ("remote" if moment == "after" else "retried")
    assert moment == "after" or first.reason.startswith("computed here: ")
    assert result.tokens_equal is (True if moment == "after" else None)
    assert result.leaked_blocks == {"decode": 0}


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("before", marks=pytest.mark.full),
        pytest.param("during", marks=pytest.mark.slow),
        pytest.param("after", marks=pytest.mark.full),
    ],
)
def test_a_killed_decode_worker_fails_its_requests_and_frees_the_prefill_worker(moment):
    result = tiny_pair(kill=f"decode:{moment}")
    assert result.workers["decode"] == "it was killed by signal 9"
    assert result.leaked_blocks == {"prefill": 0}
    assert result.tokens_equal is None
    for request, tokens in zip(result.requests, result.tokens, strict=True):
        if len(tokens) == 5:  # it was over before
            assert (request.outcome, request.reason) == ("completed", None)
        else:
            assert request.outcome == "failed"
            assert request.reason == "the decode worker was lost: it was killed by signal 9"
    assert result.requests[0].outcome == "failed"


@pytest.mark.slow
def test_a_prefill_worker_that_falls_silent_is_given_up_in_time():
    start = time.monotonic()
    result = tiny_pair(kill="prefill:stop", compare=False, timeout_s=1.0)
    assert time.monotonic() - start < 60
    first = result.requests[0]
    assert first.where == "retried"
    assert (first.t_first_decode - first.t_asked) / 1e9 < 5  # its time-out, and room
    assert [len(tokens) for tokens in result.tokens] == [5, 5, 5]
    assert result.workers["prefill"] == "it did not answer and was stopped"


@pytest.mark.full
def test_a_cut_link_between_living_processes():
    result = tiny_pair(kill="link:during")
    assert result.tokens_equal
    assert result.workers["prefill"] == "the link was cut on purpose"
    assert result.leaked_blocks == {"prefill": 0, "decode": 0}


@pytest.mark.slow
def test_ctrl_c_stops_both_workers():
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run_pair("tiny", PROMPTS)
    assert children() == []


@pytest.mark.full
def test_a_worker_that_cannot_start_says_why(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="worker did not start: it ended with status 1"):
        run_pair("tiny", PROMPTS)


@pytest.mark.slow
def test_a_model_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="no-such-model"):
        run_pair("./no-such-model", PROMPTS)


@pytest.mark.full
def test_under_torchrun():
    torchrun = Path(sys.executable).with_name("torchrun")
    command = [torchrun, "--nproc-per-node", "2", "-m", "llmlab.engine.disaggregated"]
    options = ["--model", "tiny", "--dtype", "float64", "--max-tokens", "4", "--json"]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=120, check=True
    )
    found = json.loads(done.stdout)
    assert found["tokens_equal"]
    assert found["bytes_moved"] == found["bytes_formula"] > 0


@pytest.mark.full
def test_the_real_model_keeps_law_5():
    result = run_pair(max_tokens=16)
    assert result.tokens_equal
    assert result.tokens_compared > 48
    assert result.bytes_moved == result.bytes_formula
    assert result.kv_bytes_per_token == 2 * 30 * 3 * 64 * 4


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"RANK": None}, "not started by torchrun"),
        ({"WORLD_SIZE": "3"}, "a pair has 2"),
        ({"MASTER_ADDR": "192.0.2.1"}, "loopback"),
    ],
)
def test_only_two_ranks_on_loopback_make_a_pair(changes, says):
    given = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "2900"}
    assert place(given) == ("decode", "127.0.0.1", 2900)
    given = {k: v for k, v in {**given, **changes}.items() if v is not None}
    with pytest.raises(ValueError, match=says):
        place(given)


# -- how a result is read --------------------------------------------------------------------


def moved(layers, end):
    stamps = dict.fromkeys(("t_queued", "t_asked", "t_prefill_start", "t_end"), 0)
    return MovedRequest(
        "one",
        10,
        0,
        "remote",
        10,
        0,
        "completed",
        None,
        **stamps,
        t_prefill_end=end,
        t_first_transfer=layers[0].t_sent,
        t_last_transfer=max(part.t_received for part in layers),
        t_first_decode=40_000_000,
        layers=layers,
    )


def test_time_on_the_wire_counts_overlapping_messages_once():
    ms = 1_000_000
    layers = [
        LayerSent(0, 0, 4 * ms, 1, 1),
        LayerSent(1, 2 * ms, 6 * ms, 1, 1),
        LayerSent(2, 10 * ms, 13 * ms, 1, 1),
    ]
    one = moved(layers, end=11 * ms)
    assert one.transfer_ms == 6 + 3
    assert one.visible_ms == 2
    assert one.handover_ms == 29
    assert moved(layers, end=20 * ms).visible_ms == 0


def test_tokens_are_compared_up_to_a_difference_that_float32_allows():
    theirs = [[(1, 0.5), (2, 0.5), (3, 0.5)]]
    near = [[(1, 0.5), (2, 0.001), (3, 0.5)]]
    assert compare([[1, 2, 3]], theirs, "float32", [True]) == (True, 3, 0)
    assert compare([[1, 9, 3]], theirs, "float32", [True]) == (False, 2, 0)
    assert compare([[1, 9, 3]], near, "float32", [True]) == (True, 2, 1)
    assert compare([[1, 9, 3]], near, "float64", [True]) == (False, 2, 0)
    assert compare([[1, 2]], theirs, "float32", [True]) == (False, 2, 0)  # one is missing
    assert compare([[1, 2]], theirs, "float32", [False]) == (True, 2, 0)  # it was lost half-way
    assert compare([[]], theirs, "float32", [False]) == (None, 0, 0)
    assert compare([[1]], None, "float32", [True]) == (None, 0, 0)

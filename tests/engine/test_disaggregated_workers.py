"""Both workers on real engines, in one process: two threads, real control messages, and tensors
that cross through a queue instead of torch.distributed."""

from __future__ import annotations

import queue
import socket
import threading
from functools import partial

import pytest
import torch

from llmlab.config import EngineConfig
from llmlab.engine import Engine
from llmlab.engine.attention import paged_attention
from llmlab.engine.pair.decode_worker import DecodeWorker
from llmlab.engine.pair.job import PairJob
from llmlab.engine.pair.link import Link, LinkLost
from llmlab.engine.pair.prefill_worker import PrefillWorker, SendingRunner
from llmlab.engine.pair.process import about, run_colocated
from llmlab.engine.pair.result import pair_result
from llmlab.sched.request import SamplingParams

PROMPTS = [
    [(5 * i + 1) % 256 for i in range(70)],
    [7, 8, 9],
    [(5 * i + 1) % 256 for i in range(52)],  # shares a prefix with the first
    [(3 * i * i + 2) % 256 for i in range(33)],
]
SMALL = EngineConfig(max_num_batched_tokens=32, block_size=4, num_blocks=60, max_model_len=200)
TINY_BYTES = 2 * 2 * 2 * 16 * 8  # keys and values, layers, key heads, dimensions, float64


class ThreadLink(Link):
    """The real control connection; tensors are copied through a queue."""

    def __init__(self, sock, timeout_s, wire) -> None:
        super().__init__(sock, 0, timeout_s)
        self.wire = wire

    def send_tensor(self, tensor) -> None:
        self.bytes_sent += tensor.numel() * tensor.element_size()
        self.wire.put(tensor.clone())

    def receive_tensor(self, tensor) -> None:
        try:
            tensor.copy_(self.wire.get(timeout=self.timeout.total_seconds()))
        except queue.Empty:
            raise LinkLost("nothing on the wire") from None
        self.bytes_received += tensor.numel() * tensor.element_size()


def run_job(model, job):
    """The result of a pair whose two workers are threads."""
    wire: queue.Queue[torch.Tensor] = queue.Queue()
    left, right = socket.socketpair()
    prefill = PrefillWorker(model, job, ThreadLink(left, job.timeout_s, wire))
    decode = DecodeWorker(model, job, ThreadLink(right, job.timeout_s, wire), lambda event: None)
    ended: list[str] = []
    thread = threading.Thread(target=lambda: ended.append(prefill.run()))
    thread.start()
    decode.run()
    thread.join(job.timeout_s)
    assert ended, "the prefill worker did not stop"
    prefill.link.close()
    decode.link.close()
    reports = prefill.report(ended[0]), decode.report()
    known = {**about(model, job), "texts": {}}
    colocated = run_colocated(model, job, lambda event: None)
    words = {"prefill": ended[0], "decode": decode.ended}
    return pair_result(known, *reports, colocated, words, {})


def job(**changes):
    values = {
        "model": "tiny",
        "prompts": PROMPTS,
        "max_tokens": 6,
        "config": SMALL,
        "prefill_config": changes.get("config", SMALL),
        "local_below": 8,
        "timeout_s": 20.0,
        "dtype": "float64",
    }
    return PairJob(**{**values, **changes})


def check(result, *, moved):
    assert result.tokens_equal
    assert result.tokens_compared == sum(len(tokens) for tokens in result.tokens)
    assert {r.request_id: r.moved_tokens for r in result.requests if r.moved_tokens} == moved
    expected = TINY_BYTES * sum(moved.values())
    assert result.bytes_moved == result.bytes_received == result.bytes_formula == expected
    assert result.leaked_blocks == {"prefill": 0, "decode": 0}
    assert result.workers == {"prefill": "ok", "decode": "ok"}
    for request in result.requests:
        assert request.outcome == "completed"
        assert (request.where == "remote") == (request.request_id in moved)
        if request.where == "remote":
            stamps = (
                request.t_queued,
                request.t_asked,
                request.t_prefill_start,
                request.t_first_transfer,
                request.t_last_transfer,
                request.t_first_decode,
                request.t_end,
            )
            assert list(stamps) == sorted(stamps)
            assert request.t_prefill_start < request.t_prefill_end <= request.t_first_decode
            assert 0 <= request.visible_ms <= request.handover_ms
            assert request.transfer_ms > 0


@pytest.mark.parametrize("overlap", [True, False])
def test_the_tokens_of_one_engine_and_the_bytes_of_the_formula(tiny64, overlap):
    result = run_job(tiny64, job(overlap=overlap))
    check(result, moved={"req-0": 70, "req-2": 52, "req-3": 33})


@pytest.mark.parametrize(("overlap", "order"), [(True, "s0 a0 s1 a1"), (False, "a0 a1 s0 s1")])
def test_a_layer_is_sent_before_the_next_is_computed(tiny64, overlap, order):
    seen = []

    def attention(q, k, v, batch):
        seen.append(f"a{sum(name[0] == 'a' for name in seen)}")
        return paged_attention(q, k, v, batch)

    def send_layer(name, layer, computed, block_ids, k, v):
        assert (name, computed) == ("one", 12)
        if (part := f"s{layer}") not in seen:  # the sender itself knows what it has sent
            seen.append(part)

    make = partial(
        SendingRunner, send_layer=send_layer, hold=lambda name, ids: None, overlap=overlap
    )
    engine = Engine(tiny64, SMALL, attention=attention, runner=make)
    engine.add(list(range(12)), SamplingParams(max_tokens=1), request_id="one")
    engine.step()
    assert " ".join(seen) == order


def test_few_blocks_are_back_pressure_not_an_error(tiny64):
    small = SMALL.with_(num_blocks=19)  # 76 slots: one long prompt at a time
    result = run_job(tiny64, job(config=small, prefill_config=SMALL))
    check(result, moved={"req-0": 70, "req-2": 52, "req-3": 33})
    waiting = max(point.waiting for point in result.queues["decode"])
    assert waiting >= 2
    assert max(point.moving for point in result.queues["decode"]) == 1


def test_a_cached_prefix_does_not_move(tiny64):
    cached = SMALL.with_(enable_prefix_caching=True)
    again = PROMPTS[0][:40] + PROMPTS[3][:20]
    result = run_job(tiny64, job(config=cached, prompts=[PROMPTS[0], again], arrivals=[0.0, 0.5]))
    check(result, moved={"req-0": 70, "req-1": 20})
    assert result.requests[1].cached_tokens == 40


def test_a_request_no_pool_can_hold_is_rejected_with_the_reason(tiny64):
    result = run_job(tiny64, job(prompts=[[1] * 500, [1] * 20]))
    assert [r.outcome for r in result.requests] == ["rejected", "completed"]
    assert "at most" in result.requests[0].reason
    assert result.tokens_equal


def test_a_prefill_pool_too_small_for_a_prompt_sends_it_back(tiny64):
    result = run_job(tiny64, job(prefill_config=SMALL.with_(num_blocks=10)))
    assert [r.where for r in result.requests] == ["retried", "local", "retried", "remote"]
    assert "cannot take it" in result.requests[0].reason
    assert result.tokens_equal


def test_a_link_cut_half_way_ends_in_a_local_retry(tiny64):
    result = run_job(tiny64, job(kill="link:during"))
    assert result.workers["prefill"] == "the link was cut on purpose"
    assert result.workers["decode"].startswith("alone since the prefill worker was lost")
    assert result.requests[0].where == "retried"
    assert result.tokens_equal
    assert result.leaked_blocks == {"prefill": 0, "decode": 0}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"prompts": []}, "at least one prompt"),
        ({"prompts": [""]}, "non-empty"),
        ({"prompts": [[1, "a"]]}, "token ids"),
        ({"kill": "prefill:never"}, "prefill:during"),
        ({"dtype": "int8"}, "float32 or float64"),
        ({"timeout_s": 0}, "0.5"),
        ({"arrivals": [0.0]}, "for each prompt"),
        ({"prefill_config": SMALL.with_(block_size=8)}, "same block_size"),
    ],
)
def test_a_job_that_makes_no_sense_is_refused(wrong, says):
    with pytest.raises(ValueError, match=says):
        job(**wrong)


def test_a_job_travels_as_json():
    one = job(arrivals=[0.0, 1.0, 2.0, 3.0])
    assert PairJob.from_json(one.to_json()) == one

"""/metrics: the format Prometheus reads, vLLM's names, and the trace's numbers."""

from __future__ import annotations

import time

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from llmlab.measure.metrics import summarize
from llmlab.serve.prometheus import Metrics
from llmlab.trace import RequestRecord, StepRecord, TokenEvent, Trace
from tests.serve.fake import FakeEngine
from tests.serve.test_api import ask
from tests.serve.test_guard import serving

VLLM_NAMES = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
    "vllm:request_success",
    "vllm:num_preemptions",
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:request_inference_time_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
}


def read(text: str) -> dict:
    samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, tuple(v for k, v in sample.labels.items() if k != "model_name")
            samples[key] = sample.value
    return samples


def test_who_has_an_answer_finds_it_in_the_next_scrape(monkeypatch):
    """However long counting takes: tests and dashboards compare the two."""
    count = Metrics.on_end
    monkeypatch.setattr(Metrics, "on_end", lambda *a: (time.sleep(0.1), count(*a)))
    with serving(FakeEngine(step_s=0)) as (_, url), httpx.Client(base_url=url) as http:
        ask(http, max_tokens=3)
        got = read(http.get("/metrics").text)
    assert got["vllm:request_success_total", ("length",)] == 1
    assert got["vllm:num_requests_running", ()] == 0


def test_a_scrape_says_what_the_trace_says():
    engine = FakeEngine(step_s=0.002)
    with serving(engine) as (_, url), httpx.Client(base_url=url) as http:
        for _ in range(5):
            ask(http, max_tokens=10)
        response = http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert {family.name for family in text_string_to_metric_families(response.text)} >= VLLM_NAMES
    got = read(response.text)
    assert got["vllm:generation_tokens_total", ()] == 50
    assert got["vllm:prompt_tokens_total", ()] == 25
    assert got["vllm:request_success_total", ("length",)] == 5
    assert got["vllm:time_to_first_token_seconds_count", ()] == 5
    assert got["vllm:inter_token_latency_seconds_count", ()] == 45
    assert got["vllm:num_requests_running", ()] == 0
    group = summarize(engine.trace).all
    for name, figure, n in (
        ("time_to_first_token", "ttft", 5),
        ("inter_token_latency", "itl", 45),
        ("e2e_request_latency", "e2e", 5),
        ("request_queue_time", "queue", 5),
        ("request_time_per_output_token", "tpot", 5),
    ):
        mean = got[f"vllm:{name}_seconds_sum", ()] / n
        assert mean * 1e3 == pytest.approx(group[figure].mean), name


def test_an_aborted_request_is_counted_as_such():
    metrics = Metrics("m")
    record = RequestRecord("a", prompt_tokens=3, t_send=0, events=[TokenEvent(10), TokenEvent(30)])
    metrics.on_end(record, "abort")
    got = read(metrics.render())
    assert got["vllm:request_success_total", ("abort",)] == 1
    assert got["vllm:request_generation_tokens_sum", ()] == 2


def test_buckets_are_cumulative_and_end_with_all():
    metrics = Metrics("m")
    trace = Trace(requests={"a": RequestRecord("a", t_send=0, events=[TokenEvent(30_000_000)])})
    metrics.on_step(StepRecord(0, 0, 1, [("a", 5, 0, False)], preempted=["b"]), trace, ["a"])
    got = read(metrics.render())
    name = "vllm:time_to_first_token_seconds_bucket"
    assert got[name, ("0.025",)] == 0
    assert got[name, ("0.05",)] == 1
    assert got[name, ("+Inf",)] == 1
    assert got["vllm:num_preemptions_total", ()] == 1
    assert got["vllm:iteration_tokens_total_sum", ()] == 5


def test_a_model_name_with_quotes_does_not_break_the_format():
    assert read(Metrics('a"b\\c\n').render())

"""Prometheus text under vLLM's metric names, read off the trace as it grows.

Names and meaning: https://docs.vllm.ai/en/latest/usage/metrics/. One difference, on purpose: an
engine output of k tokens after a gap d gives k samples of d / k to inter_token_latency, where
vLLM gives one sample an output. Times are seconds, as Prometheus wants them.
"""

from __future__ import annotations

import bisect
import math
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from llmlab.trace import RequestRecord, StepRecord, Trace

FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75,
        1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)  # fmt: skip
SLOW = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0,
        50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0)  # fmt: skip
COUNTS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0)

HISTOGRAMS = {
    "time_to_first_token_seconds": (FAST, "From the request's arrival to its first token."),
    "inter_token_latency_seconds": (FAST, "Gap before each later token."),
    "request_time_per_output_token_seconds": (FAST, "Mean gap of a request, first token left out."),
    "e2e_request_latency_seconds": (SLOW, "From the request's arrival to its last token."),
    "request_queue_time_seconds": (SLOW, "From the engine's queue to the first scheduled step."),
    "request_prefill_time_seconds": (SLOW, "From the first scheduled step to the first token."),
    "request_decode_time_seconds": (SLOW, "From the first token to the last."),
    "request_inference_time_seconds": (SLOW, "From the first scheduled step to the last token."),
    "request_prompt_tokens": (COUNTS, "Prompt tokens of a request."),
    "request_generation_tokens": (COUNTS, "Output tokens of a request."),
    "iteration_tokens_total": (COUNTS, "Tokens computed in one engine step."),
}
COUNTERS = {
    "prompt_tokens_total": "Prompt tokens of the requests that got a first token.",
    "generation_tokens_total": "Output tokens.",
    "num_preemptions_total": "Requests thrown out to make room.",
    "prefix_cache_queries_total": "Prompt tokens looked up in the prefix cache.",
    "prefix_cache_hits_total": "Prompt tokens found in the prefix cache.",
}
GAUGES = {
    "num_requests_running": "Requests in the running batch.",
    "num_requests_waiting": "Requests waiting to be scheduled.",
    "kv_cache_usage_perc": "Share of the KV blocks in use, 1 = all.",
}


@dataclass(slots=True)
class Histogram:
    """Counts by upper bound; one more bucket above the last bound."""

    bounds: tuple[float, ...]
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        """Count `times` samples of this value; a bound holds what equals it."""
        self.counts[bisect.bisect_left(self.bounds, value)] += times
        self.total += value * times


class Metrics:
    """Counters since the start. The engine's thread writes, the HTTP side renders."""

    def __init__(self, model_name: str) -> None:
        quoted = model_name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        self._label = f'model_name="{quoted}"'
        self._lock = threading.Lock()
        self._histograms = {name: Histogram(bounds) for name, (bounds, _) in HISTOGRAMS.items()}
        self._counters = dict.fromkeys(COUNTERS, 0)
        self._gauges: dict[str, float] = dict.fromkeys(GAUGES, 0.0)
        self._finished = {"stop": 0, "length": 0, "abort": 0}

    def on_step(self, step: StepRecord, trace: Trace, got_tokens: Iterable[str]) -> None:
        """Take one step, and the new token event of each request that got one in it."""
        with self._lock:
            tokens = step.prefill_tokens + step.decode_tokens
            self._histograms["iteration_tokens_total"].observe(tokens)
            self._counters["num_preemptions_total"] += len(step.preempted)
            for request_id in got_tokens:
                self._on_token(trace.requests[request_id])

    def _on_token(self, record: RequestRecord) -> None:
        last = record.events[-1]
        k = last.k or 1
        self._counters["generation_tokens_total"] += k
        if len(record.events) == 1:
            if record.t_send is not None:
                self._observe("time_to_first_token_seconds", last.t - record.t_send)
            self._counters["prompt_tokens_total"] += record.prompt_tokens or 0
            self._counters["prefix_cache_queries_total"] += record.prompt_tokens or 0
            self._counters["prefix_cache_hits_total"] += record.cached_tokens
        else:
            gap = last.t - record.events[-2].t
            self._observe("inter_token_latency_seconds", gap / k, times=k)

    def on_end(self, record: RequestRecord, reason: str) -> None:
        """Take a request that is over; `reason` is vLLM's word: stop, length or abort."""
        with self._lock:
            self._finished[reason] = self._finished.get(reason, 0) + 1
            if record.prompt_tokens is not None:
                self._histograms["request_prompt_tokens"].observe(record.prompt_tokens)
            n = record.completion_tokens or sum(event.k or 0 for event in record.events)
            self._histograms["request_generation_tokens"].observe(n)
            if not record.events:
                return
            first, last = record.events[0].t, record.events[-1].t
            if record.t_send is not None:
                self._observe("e2e_request_latency_seconds", last - record.t_send)
            if record.t_first_scheduled is not None:
                start = record.t_first_scheduled
                if record.t_queued is not None:
                    self._observe("request_queue_time_seconds", start - record.t_queued)
                self._observe("request_prefill_time_seconds", first - start)
                self._observe("request_inference_time_seconds", last - start)
            self._observe("request_decode_time_seconds", last - first)
            if n > 1:
                per_token = (last - first) / (n - 1)
                self._observe("request_time_per_output_token_seconds", per_token)

    def set_gauges(self, running: int, waiting: int, kv_usage: float) -> None:
        """What is so now. kv_usage: share of the blocks in use, 0 to 1."""
        with self._lock:
            self._gauges["num_requests_running"] = running
            self._gauges["num_requests_waiting"] = waiting
            self._gauges["kv_cache_usage_perc"] = kv_usage

    def _observe(self, name: str, ns: float, times: int = 1) -> None:
        self._histograms[name].observe(ns / 1e9, times)

    def render(self) -> str:
        """The exposition text, version 0.0.4."""
        with self._lock:
            return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        for name, help_ in GAUGES.items():
            yield from _head(name, help_, "gauge")
            yield f"vllm:{name}{{{self._label}}} {_number(self._gauges[name])}"
        for name, help_ in COUNTERS.items():
            yield from _head(name, help_, "counter")
            yield f"vllm:{name}{{{self._label}}} {self._counters[name]}"
        yield from _head("request_success_total", "Requests ended, by reason.", "counter")
        for reason, count in self._finished.items():
            label = f'finished_reason="{reason}",{self._label}'
            yield f"vllm:request_success_total{{{label}}} {count}"
        for name, (_, help_) in HISTOGRAMS.items():
            yield from _head(name, help_, "histogram")
            histogram = self._histograms[name]
            seen = 0
            bounds = (*histogram.bounds, math.inf)
            for bound, count in zip(bounds, histogram.counts, strict=True):
                seen += count
                label = f'le="{_number(bound)}",{self._label}'
                yield f"vllm:{name}_bucket{{{label}}} {seen}"
            yield f"vllm:{name}_sum{{{self._label}}} {_number(histogram.total)}"
            yield f"vllm:{name}_count{{{self._label}}} {seen}"


def _head(name: str, help_: str, kind: str) -> Iterator[str]:
    yield f"# HELP vllm:{name} {help_}"
    yield f"# TYPE vllm:{name} {kind}"


def _number(value: float) -> str:
    return "+Inf" if value == math.inf else repr(float(value))

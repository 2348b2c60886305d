"""The forms a summary takes: nothing lost, nothing made up, nothing loaded from elsewhere."""

from __future__ import annotations

import csv
import io
import json
import re

import numpy as np
import pytest

from llmlab.measure.limits import Limits
from llmlab.measure.metrics import LATENCIES, summarize, vllm_keys
from llmlab.measure.report import html
from llmlab.measure.report_figures import figures
from llmlab.measure.tables import show
from tests.measure.traces import record, trace

EVIL = "</script><script>alert(1)</script>"


def run(*class_names, n=10, **meta):
    return trace(
        *(
            record(
                f"{name}{i}",
                [100 * i + 50 + 20 * j for j in range(4 + i % 3)],
                sched=100 * i,
                send=100 * i,
                queued=100 * i + 1,
                first_scheduled=100 * i + 10,
                end=100 * i + 200,
                prompt_tokens=8,
                completion_tokens=4 + i % 3,
                class_name=name,
            )
            for name in class_names
            for i in range(n)
        ),
        **meta,
    )


def test_json_holds_every_figure_and_no_invented_zero():
    data = json.loads(json.dumps(summarize(run("chat")).to_dict(), allow_nan=False))
    for name, unit in LATENCIES.items():
        entry = data["all"][f"{name}_ms" if unit == "ms" else f"{name}_tok_s"]
        assert {"n", "undefined", "mean", "p50", "p95", "p99", "max", "thin_p99"} <= set(entry)
    empty = summarize(trace(record(outcome="failed", end=1))).to_dict()
    assert empty["all"]["ttft_ms"]["mean"] is None
    assert empty["all"]["attainment"] is None


def test_csv_reads_back_to_the_same_numbers():
    summary = summarize(run("chat", "document"), limits=Limits(ttft_ms=60))
    rows = {(r["class"], r["figure"]): r for r in csv.DictReader(io.StringIO(summary.to_csv()))}
    assert float(rows["chat", "ttft"]["p95"]) == summary["chat"]["ttft"].p95
    assert int(rows["all", "completed"]["value"]) == 20
    assert float(rows["all", "attainment"]["value"]) == 1.0
    assert rows["chat", "ttfat"]["n"] == "10"
    failed = summarize(trace(record(outcome="failed", end=1)))
    rows = {r["figure"]: r for r in csv.DictReader(io.StringIO(failed.to_csv()))}
    assert [rows["ttft"][column] for column in ("n", "mean", "p99")] == ["0", "", ""]
    assert [rows[name]["value"] for name in ("attainment", "goodput_req_s", "failed")] == [
        "",
        "",
        "1",
    ]


def test_each_csv_rate_has_its_unit():
    rows = csv.DictReader(io.StringIO(summarize(run("chat")).to_csv()))
    units = {row["figure"]: row["unit"] for row in rows if row["class"] == "all"}
    expected = {
        "window_s": "s",
        "output_tokens": "tokens",
        "peak_output_tok_s": "tok/s",
        "completed_req_s": "req/s",
        "shortfall_percent": "%",
        "attainment": "",
        "submitted": "requests",
        "ttft": "ms",
        "output_len": "tokens",
    }
    assert {figure: units[figure] for figure in expected} == expected


def test_markdown_has_a_section_for_each_class_and_one_for_all():
    text = summarize(run("chat", "docu|ment")).to_markdown()
    heads = [line for line in text.splitlines() if line.startswith("### ")]
    assert heads == ["### chat", "### docu\\|ment", "### all"]
    tables = re.findall(r"(?:^\|.*\n)+", text, flags=re.M)
    for table in tables:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1
    assert "| TTFT, ms | 10 | 50 | 50 | 50 | 50* | 50 |" in text


def test_vllm_keys_are_those_of_its_benchmark():
    summary = summarize(run("chat"), limits=Limits(ttft_ms=60))
    keys = vllm_keys(summary, detailed=True)
    expected = {"duration", "completed", "failed", "total_input_tokens", "total_output_tokens"}
    expected |= {"request_throughput", "request_goodput", "output_throughput"}
    expected |= {"total_token_throughput", "max_output_tokens_per_s", "max_concurrent_requests"}
    expected |= {"input_lens", "output_lens", "ttfts", "itls", "start_times", "errors"}
    for name in ("ttft", "tpot", "itl", "e2el"):
        expected |= {f"{stat}_{name}_ms" for stat in ("mean", "median", "std", "p99")}
    assert expected <= set(keys)
    assert keys["total_input_tokens"] == 80
    assert keys["total_output_tokens"] == sum(keys["output_lens"]) == 49
    assert keys["mean_ttft_ms"] == 50
    assert keys["ttfts"] == [pytest.approx(0.05)] * 10
    assert keys["request_goodput"] == keys["request_throughput"]
    json.dumps(keys, allow_nan=False)
    tail = vllm_keys(summarize(run("chat"), percentiles=(99,)))
    assert (tail["median_ttft_ms"], tail["p99_ttft_ms"]) == (50, 50), "the median is always there"


def test_numbers_for_people():
    assert [show(x) for x in (None, 0, 7, 1234, 0.1234567, 42.5149, 1735.4)] == [
        "–",
        "0",
        "7",
        "1,234",
        "0.1235",
        "42.51",
        "1,735",
    ]
    assert show(None, "ms") == "–"
    assert show(700, "ms") == "700 ms"


def test_the_page_is_whole_and_loads_nothing():
    page = html(summarize(run("chat", "document"), limits=Limits(ttft_ms=60, gap_ms=50)))
    assert not re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=", page)
    assert "default-src 'none'" in page
    assert page.count('class="plot"') == 6
    assert "prefers-color-scheme: dark" in page
    assert "✓ held" in page


def test_a_gap_limit_is_held_against_its_own_percentile():
    """95 gaps of 20 ms and 5 of 90: at p95 the limit is kept, at p99 it is missed."""
    stamps = np.cumsum([50, *[20] * 95, *[90] * 5])
    summary = summarize(
        trace(record(events=stamps.tolist(), end=float(stamps[-1]))),
        limits=Limits(gap_ms=50, gap_percentile=99),
    )
    page = html(summary)
    assert "Gap p99" in page
    assert "✗ missed" in page


def test_names_in_a_trace_cannot_become_code():
    run_ = run(EVIL, workload={"name": EVIL, "description": EVIL}, model=EVIL)
    page = html(summarize(run_))
    assert EVIL not in page
    assert "&lt;/script&gt;" in page
    data = re.search(r'<script type="application/json" id="plots">(.*?)</script>', page).group(1)
    assert not set("<>&") & set(data)
    assert json.loads(data)[0]["data"][0]["name"] == EVIL


def test_a_page_without_one_token_still_says_what_became_of_the_requests():
    page = html(summarize(trace(record(outcome="failed", end=1))))
    assert "What became of the requests" in page
    assert "0 of 1 completed" in page


def test_the_plots_show_the_samples_themselves():
    summary = summarize(run("chat"), limits=Limits(ttft_ms=60))
    plots = {plot["title"]: plot["figure"] for plot in figures(summary)}
    ttft = plots["Time to first token"]
    assert set(ttft["data"][0]["x"]) == {50.0}
    assert [shape["x0"] for shape in ttft["layout"]["shapes"]] == [60]
    assert sum(plots["Output tokens by second"]["data"][0]["y"]) == 49
    assert max(plots["In flight"]["data"][0]["y"]) == summary.all.concurrency_peak
    lengths = plots["Output lengths"]["data"][0]
    assert {x: y for x, y in zip(lengths["x"], lengths["y"], strict=True) if y} == {
        4.5: 4,
        5.5: 3,
        6.5: 3,
    }
    rows = plots["Each request's time"]["data"]
    assert {bar["name"] for bar in rows} == {"waiting", "chat, prefill", "chat, decode"}
    assert all(len(bar["y"]) == 10 for bar in rows)


def test_the_timeline_gives_each_request_a_row_and_each_class_its_own():
    plots = {p["title"]: p["figure"] for p in figures(summarize(run("chat", "document", n=6)))}
    figure = plots["Each request's time"]
    decodes = {bar["name"]: bar["y"] for bar in figure["data"] if "decode" in bar["name"]}
    assert decodes == {"chat, decode": [*range(6)], "document, decode": [*range(6, 12)]}
    assert figure["layout"]["yaxis"]["tickvals"] == [2.5, 8.5]
    assert [shape["y0"] for shape in figure["layout"]["shapes"]] == [5.5]


def test_a_request_scheduled_at_zero_is_shown_in_prefill_not_waiting():
    first = record(events=[50, 70], queued=0, first_scheduled=0, end=70)
    plots = {plot["title"]: plot["figure"] for plot in figures(summarize(trace(first)))}
    bars = {bar["name"]: bar["x"] for bar in plots["Each request's time"]["data"]}
    assert bars == {"default, prefill": [0.05], "default, decode": [0.02]}

"""A Summary as Markdown, as CSV, and under the JSON keys of `vllm bench serve`."""

from __future__ import annotations

import csv
import io
from typing import Any

from llmlab.measure.stats import Stat
from llmlab.measure.summary import LATENCIES, Group, Summary

# Shown in this order; a row without one sample in any group is left out.
COUNT_ROWS = (
    ("submitted", "Submitted"),
    ("admitted", "  admitted"),
    ("completed", "    completed"),
    ("failed", "    failed"),
    ("cancelled", "    cancelled"),
    ("in_flight_at_end", "    in flight at the end"),
    ("rejected", "  rejected"),
    ("cancelled_before_send", "  cancelled before send"),
)
LABELS = {
    "dispatch_delay": "Generator lag",
    "preprocessing": "Preprocessing",
    "queue": "Queue",
    "prefill": "Prefill",
    "ttft": "TTFT",
    "ttft_from_schedule": "TTFT from schedule",
    "ttfat": "TTFAT (first answer token)",
    "tpot": "TPOT (per request)",
    "itl": "ITL (per token)",
    "event_gaps": "Event gap (raw)",
    "preempted_wait": "Preempted wait",
    "e2e": "E2E",
    "e2e_from_schedule": "E2E from schedule",
    "close_lag": "Close lag",
    "stream_rate": "Stream rate",
    "e2e_rate": "E2E rate",
}
UNDEFINED = "–"
RATE_UNITS = {  # by the end of a name in Rates
    "_tokens": "tokens",
    "_tok_s": "tok/s",
    "_req_s": "req/s",
    "_percent": "%",
    "window_s": "s",
}
VLLM_STATS = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2e"}


def show(value: float | int | None, unit: str = "") -> str:
    """A number for people: four significant places or whole, a dash when undefined."""
    if value is None:
        return UNDEFINED
    if isinstance(value, int):
        text = f"{value:,}"
    else:
        text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{text} {unit}".rstrip()


def latency_rows(group: Group) -> list[tuple[str, str, Stat]]:
    """(label, unit, Stat) of every latency that says something about this group."""
    rows = []
    for name, unit in LATENCIES.items():
        stat = group[name]
        silent = name in ("preempted_wait", "dispatch_delay", "close_lag") and not stat.max
        # Where nobody reasons and one token comes at a time these repeat the row before.
        repeats = (name == "ttfat" and stat == group["ttft"]) or (
            name == "event_gaps" and stat == group["itl"]
        )
        same = (
            name.endswith("_from_schedule") and stat == group[name.removesuffix("_from_schedule")]
        )
        if stat.n and not (silent or repeats or same):
            rows.append((LABELS[name], unit, stat))
    return rows


def rate_rows(group: Group) -> list[tuple[str, str]]:
    """(label, shown value) of the rates of a group that are defined."""
    return [(label, value) for label, value in _rates(group) if value != UNDEFINED]


def rate_table(summary: Summary) -> list[tuple[str, list[str]]]:
    """(label, shown value for every group) of the rates that are defined for one of them."""
    columns = [dict(_rates(group)) for group in summary.groups]
    rows = [(label, [column[label] for column in columns]) for label in columns[0]]
    return [row for row in rows if set(row[1]) != {UNDEFINED}]


def _rates(group: Group) -> list[tuple[str, str]]:
    rates, share = group.rates, group.attainment
    return [
        ("Output, tok/s", show(rates.output_tok_s)),
        ("Output of completed only, tok/s", show(rates.completed_output_tok_s)),
        ("Prompt and output, tok/s", show(rates.total_tok_s)),
        ("Busiest second, tok/s", show(rates.peak_output_tok_s)),
        ("Completed, req/s", show(rates.completed_req_s)),
        ("Goodput, req/s", show(rates.goodput_req_s)),
        ("Within every limit, %", UNDEFINED if share is None else f"{100 * share:.1f}"),
        ("Offered, req/s", show(rates.offered_req_s)),
        ("Realized, req/s", show(rates.realized_req_s)),
        ("In flight, peak", show(group.concurrency_peak)),
        ("In flight, mean", show(group.concurrency_mean)),
        ("Output length, p50 tokens", show(group.output_len.median)),
        ("Output length, max tokens", show(group.output_len.max)),
    ]


def percentile_cells(stat: Stat) -> list[str]:
    """The percentiles, shown; * marks a p99 of fewer than 100 samples."""
    return [
        show(value) + ("*" if name == "p99" and stat.thin_p99 and value is not None else "")
        for name, value in stat.percentiles.items()
    ]


def markdown(summary: Summary) -> str:
    """The summary as Markdown tables, one section a class, counts first."""
    names = [group.name.replace("|", "\\|") for group in summary.groups]
    lines = ["| Requests | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    for key, label in COUNT_ROWS:
        cells = [str(getattr(group.counts, key)) for group in summary.groups]
        lines.append(f"| {label.strip()} | " + " | ".join(cells) + " |")
    for name, group in zip(names, summary.groups, strict=True):
        lines += ["", f"### {name}", "", *_latency_table(group)]
    lines += ["", "| Rates | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    lines += [f"| {label} | " + " | ".join(values) + " |" for label, values in rate_table(summary)]
    lines += [""] + [f"- {text}" for text in footer(summary)]
    return "\n".join(lines) + "\n"


def footer(summary: Summary) -> list[str]:
    """What holds for the whole run: window, memory, method, and the notes."""
    lines = []
    if summary.window is not None:
        lines.append(f"Window: {show(summary.window.seconds, 's')}.")
    if summary.max_resident_kv_tokens is not None:
        lines.append(
            f"Most KV resident during a step: {show(summary.max_resident_kv_tokens, 'tokens')}; "
            f"most blocks held after one: {show(summary.max_blocks_used)}."
        )
    lines.append("Percentiles: numpy linear; n is the number of samples.")
    return lines + summary.notes


def _latency_table(group: Group) -> list[str]:
    names = list(group.output_len.percentiles)
    head = ["Latency", "n", "mean", *names, "max"]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for label, unit, stat in latency_rows(group):
        cells = [show(stat.n), _with_ci(stat, "mean", show(stat.mean))]
        shown = zip(names, percentile_cells(stat), strict=True)
        cells += [_with_ci(stat, name, text) for name, text in shown]
        cells.append(show(stat.max))
        lines.append(f"| {label}, {unit} | " + " | ".join(cells) + " |")
    return lines


def _with_ci(stat: Stat, name: str, text: str) -> str:
    if name not in stat.ci:
        return text
    low, high = stat.ci[name]
    return f"{text} [{show(low)}, {show(high)}]"


def csv_text(summary: Summary) -> str:
    """One row a class and figure; undefined cells are empty, never 0."""
    out = io.StringIO()
    percentiles = list(summary.all.output_len.percentiles)
    columns = ["class", "figure", "unit", "n", "undefined", "mean", "std", "min"]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*columns, *percentiles, "max", "value"])
    blank = [""] * (len(percentiles) + 6)
    for group in summary.groups:
        for key, _ in COUNT_ROWS:
            writer.writerow([group.name, key, "requests", *blank, getattr(group.counts, key)])
        for key, value in (*group.rates.to_dict().items(), ("attainment", group.attainment)):
            unit = next((unit for end, unit in RATE_UNITS.items() if key.endswith(end)), "")
            writer.writerow([group.name, key, unit, *blank, "" if value is None else value])
        lengths = {"output_len": group.output_len, "prompt_len": group.prompt_len}
        for key, stat in {**group.latencies, **lengths}.items():
            cells: list[Any] = [stat.n, stat.undefined, stat.mean, stat.std, stat.min]
            cells += [*stat.percentiles.values(), stat.max, None]
            unit = LATENCIES.get(key, "tokens")
            row = [group.name, key, unit, *("" if cell is None else cell for cell in cells)]
            writer.writerow(row)
    return out.getvalue()


def vllm_keys(summary: Summary, *, detailed: bool = False) -> dict[str, Any]:
    """The run under the JSON keys of `vllm bench serve`; undefined is None, never 0.

    The names are vLLM's, the definitions this package's (for instance: an opening frame without
    a token stops no clock, and ITL is per token). detailed adds the per-request arrays.
    """
    group, rates = summary.all, summary.all.rates
    out: dict[str, Any] = {
        "duration": rates.window_s,
        "completed": group.counts.completed,
        "failed": group.counts.failed,
        "total_input_tokens": _total(group.prompt_len),
        "total_output_tokens": _total(group.output_len),
        "request_throughput": rates.completed_req_s,
        "request_goodput": rates.goodput_req_s,
        "output_throughput": rates.output_tok_s,
        "total_token_throughput": rates.total_tok_s,
        "max_output_tokens_per_s": rates.peak_output_tok_s,
        "max_concurrent_requests": group.concurrency_peak,
    }
    for theirs, ours in VLLM_STATS.items():
        stat = group[ours]
        out |= {f"mean_{theirs}_ms": stat.mean, f"median_{theirs}_ms": stat.median}
        out[f"std_{theirs}_ms"] = stat.std
        out |= {f"{name}_{theirs}_ms": value for name, value in stat.percentiles.items()}
    return out | _vllm_arrays(summary) if detailed else out


def _vllm_arrays(summary: Summary) -> dict[str, list[Any]]:
    """One entry per completed request, times in seconds; an undefined entry is None."""
    done = [m for m in summary.requests if m.outcome == "completed"]
    records = [summary.trace.requests[m.request_id] for m in done]
    return {
        "input_lens": [r.prompt_tokens for r in records],
        "output_lens": [m.n for m in done],
        "ttfts": [_seconds(m.ttft) for m in done],
        "itls": [None if m.itl is None else [gap / 1e3 for gap in m.itl] for m in done],
        "latencies": [_seconds(m.e2e) for m in done],
        "start_times": [None if r.t_send is None else r.t_send / 1e9 for r in records],
        "queue_times": [_seconds(m.queue) for m in done],
        "errors": [
            r.reason or "" for r in summary.trace.requests.values() if r.outcome == "failed"
        ],
    }


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1e3


def _total(stat: Stat) -> int | None:
    if stat.undefined:
        return None
    return round(stat.mean * stat.n) if stat.mean is not None else 0

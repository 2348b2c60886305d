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
VLLM_STATS = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2e"}


def show(value: float | int | None, unit: str = "") -> str:
    """A number for people: three significant places or whole, a dash when undefined."""
    if value is None:
        return "–"
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
        silent = name in ("preempted_wait", "dispatch_delay") and not stat.max
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
    rates = group.rates
    rows = [
        ("Output tokens", show(rates.output_tok_s, "tok/s")),
        ("Output tokens of completed only", show(rates.completed_output_tok_s, "tok/s")),
        ("Prompt + output tokens", show(rates.total_tok_s, "tok/s")),
        ("Busiest second", show(rates.peak_output_tok_s, "tok/s")),
        ("Requests completed", show(rates.completed_req_s, "req/s")),
        ("Goodput", show(rates.goodput_req_s, "req/s")),
        ("Offered", show(rates.offered_req_s, "req/s")),
        ("Realized", show(rates.realized_req_s, "req/s")),
        ("In flight, peak", show(group.concurrency_peak)),
        ("In flight, mean", show(group.concurrency_mean)),
    ]
    attainment = group.attainment
    if attainment is not None:
        share = f"{100 * attainment:.1f} % ({group.good} of {group.judged})"
        rows.append(("Attainment of the limits", share))
    return [row for row in rows if row[1] != "–"]


def markdown(summary: Summary) -> str:
    """The summary as Markdown tables, one section a class, counts first."""
    names = [group.name for group in summary.groups]
    lines = ["| Requests | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    for key, label in COUNT_ROWS:
        cells = [str(getattr(group.counts, key)) for group in summary.groups]
        lines.append(f"| {label.strip()} | " + " | ".join(cells) + " |")
    for group in summary.groups:
        lines += ["", f"### {group.name}", "", *_latency_table(group), ""]
        lines += [f"- {label}: {value}" for label, value in rate_rows(group)]
        lines.append(f"- Output length: {_lengths(group.output_len)}")
    lines += [""] + [f"- {text}" for text in footer(summary)]
    return "\n".join(lines) + "\n"


def footer(summary: Summary) -> list[str]:
    """What holds for the whole run: window, memory, method, and the notes."""
    lines = []
    if summary.window is not None:
        lines.append(f"Window: {show(summary.window.seconds, 's')}.")
    if summary.max_resident_kv_tokens is not None:
        lines.append(
            f"Most KV resident: {show(summary.max_resident_kv_tokens, 'tokens')} "
            f"in {show(summary.max_blocks_used, 'blocks')}."
        )
    lines.append("Percentiles: numpy linear; n is the number of samples.")
    return lines + summary.notes


def _lengths(stat: Stat) -> str:
    if not stat.n:
        return "–"
    spread = f"{show(stat.min)}..{show(stat.max)} tokens"
    return f"mean {show(stat.mean)}, p50 {show(stat.p50)}, {spread}, n = {stat.n}"


def _latency_table(group: Group) -> list[str]:
    names = list(group.output_len.percentiles)
    head = ["Latency", "n", "mean", *names, "max"]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for label, unit, stat in latency_rows(group):
        cells = [str(stat.n), _with_ci(stat, "mean", stat.mean)]
        cells += [_with_ci(stat, name, stat.percentiles[name]) for name in names]
        cells.append(show(stat.max))
        lines.append(f"| {label}, {unit} | " + " | ".join(cells) + " |")
    return lines


def _with_ci(stat: Stat, name: str, value: float | None) -> str:
    mark = "*" if name == "p99" and stat.thin_p99 and value is not None else ""
    if name not in stat.ci:
        return show(value) + mark
    low, high = stat.ci[name]
    return f"{show(value)}{mark} [{show(low)}, {show(high)}]"


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
            unit = "" if key == "attainment" else "tokens" if key.endswith("tokens") else "1/s"
            writer.writerow([group.name, key, unit, *blank, "" if value is None else value])
        lengths = {"output_len": group.output_len, "prompt_len": group.prompt_len}
        for key, stat in (group.latencies | lengths).items():
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
    done = [m for m in summary.requests if m.outcome == "completed"]
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
        out |= {f"mean_{theirs}_ms": stat.mean, f"median_{theirs}_ms": stat.p50}
        out[f"std_{theirs}_ms"] = stat.std
        out |= {f"{name}_{theirs}_ms": value for name, value in stat.percentiles.items()}
    if detailed:
        out["output_lens"] = [m.n for m in done]
        out["ttfts"] = [None if m.ttft is None else m.ttft / 1e3 for m in done]
        out["itls"] = [None if m.itl is None else [gap / 1e3 for gap in m.itl] for m in done]
        out["e2els"] = [None if m.e2e is None else m.e2e / 1e3 for m in done]
    return out


def _total(stat: Stat) -> int | None:
    if stat.undefined:
        return None
    return round(stat.mean * stat.n) if stat.mean is not None else 0

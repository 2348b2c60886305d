"""What the README shows is so: its paths exist and its example prints what it says."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_path_named_exists():
    paths = re.findall(r"`((?:llmlab|tests|data|labs|solutions)/[\w./]*)`", TEXT)
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []


def kept(name: str) -> dict:
    return json.loads((ROOT / "data" / "results" / f"{name}.json").read_text(encoding="utf-8"))


def test_the_numbers_are_those_that_were_kept():
    cpu = kept("cpu")
    step, ratios = cpu["decode_ms"]["llmlab"], cpu["ratios"]
    floor = ratios["decode_over_fp32_floor"]
    figures = [
        ", ".join(f"{step[b]:.1f}" for b in ("1", "4", "16", "64")) + " ms",
        f"llama.cpp F32, at worst | {max(ratios['decode_over_llama.cpp F32'].values()):.2f} |",
        f"transformers, at worst | {max(ratios['decode_over_transformers'].values()):.2f} |",
        f"batching | {ratios['serving_time_over_transformers continuous batching']:.2f} |",
        f"{kept('sched')['planned_tokens_per_s'] / 1e6:.1f} million tokens planned",
        f"| {100 * kept('simulate_truth')['error']['tpot_ms']:+.1f} % |",
        f"{kept('sweep_speedup')['processes']['speedup']:.2f} times as fast",
        f"{kept('disagg')['bytes_moved']:,} bytes",
        f"{floor['16']:.1f}, {floor['32']:.1f} and {floor['64']:.1f} times",
        f"takes {ratios['prefill_over_floor']['512']:.1f} times",
        f"{cpu['peak_memory_mb']:.0f} MB",
    ]
    assert cpu["cpu"] in TEXT
    assert [figure for figure in figures if figure not in TEXT] == []
    assert kept("disagg")["bytes_moved"] == kept("disagg")["bytes_formula"]


def test_the_soak_is_the_one_that_was_kept():
    engine, server = kept("engine_soak"), kept("serve_soak")
    said = " ".join(TEXT.split())
    assert f"finished {engine['finished']:,} requests" in said
    assert f"{engine['preempted']:,} preemptions and {engine['aborted']:,} aborts" in said
    assert f"{server['completed']:,} streams while {server['cancelled']:,} clients" in said
    grown = f"{100 * engine['rss_growth']:.1f} % and {100 * server['rss_growth']:.1f} %"
    assert f"memory grew by {grown}" in said
    assert max(engine["rss_growth"], server["rss_growth"]) < 0.01
    assert min(engine["seconds"], server["seconds"]) >= 1200


@pytest.mark.slow
def test_the_scheduler_example_prints_what_it_says():
    code, printed = re.findall(
        r"```python\n(from llmlab\.measure.*?)```\n\n```\n(.*?)```", TEXT, re.S
    )[0]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    assert said.getvalue() == printed

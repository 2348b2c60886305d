"""The command line of `bench serve`: the flag names of `vllm bench serve`, and what they make."""

from __future__ import annotations

import argparse
import json
import math
import os
from typing import Any

from llmlab.bench.command import at_least_one
from llmlab.measure.limits import Limits
from llmlab.measure.workload import Workload, load_workload, parse_workload

EPILOG = """examples:
  llmlab bench serve --workload chat_and_documents_cpu --json
  llmlab bench serve --base-url http://127.0.0.1:8000 --request-rate 4
  llmlab bench serve --base-url https://api.example.com --model NAME \\
      --endpoint /v1/chat/completions --no-ignore-eos --max-concurrency 4 \\
      --prices input=0.15,cached_input=0.075,output=0.60

Without --base-url the engine is started here and measured over loopback."""

ENDPOINTS = {"/v1/completions": "completions", "/v1/chat/completions": "chat"}
GOODPUT = {"ttft": "ttft_ms", "tpot": "tpot_ms", "e2el": "e2el_ms"}
METRICS = ("ttft", "tpot", "itl", "e2el")


def parser() -> argparse.ArgumentParser:
    """All flags. Names and meaning are vLLM's where vLLM has them."""
    p = argparse.ArgumentParser(
        prog="llmlab bench serve",
        usage="llmlab bench serve [--base-url URL] [options]",
        description="Measure a server over HTTP: the four numbers, per class and together.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _server_flags(p.add_argument_group("server"))
    _load_flags(p.add_argument_group("load"))
    _report_flags(p.add_argument_group("report"))
    return p


def _server_flags(g: Any) -> None:
    g.add_argument("--base-url", metavar="URL", help="server to measure; else one is started here")
    g.add_argument("--endpoint", choices=ENDPOINTS, default="/v1/completions")
    g.add_argument("--model", help="name in the API (or what to start here: smollm2-135m)")
    g.add_argument("--api-key-env", metavar="NAME", default="OPENAI_API_KEY",
                   help="environment variable with the API key (default %(default)s)")  # fmt: skip
    g.add_argument("--header", action="append", default=[], metavar="K=V")
    g.add_argument("--extra-body", type=json_object, default={}, metavar="JSON")
    g.add_argument("--tokenizer", metavar="FILE", help="tokenizer.json, to count where the server "
                   "does not")  # fmt: skip
    g.add_argument("--continuous-usage", action=argparse.BooleanOptionalAction, default=None,
                   help="a count in every frame (default: where started here)")  # fmt: skip
    g.add_argument("--request-timeout", type=positive, default=600.0, metavar="S")
    g.add_argument("--engine", action="append", default=[], metavar="FLAG=VALUE",
                   help="of `llmlab serve`, if started here: --engine max-num-seqs=8")  # fmt: skip


def _load_flags(g: Any) -> None:
    g.add_argument("--workload", metavar="NAME", help="a workload file, or one of data/workloads")
    g.add_argument("--num-prompts", type=int, help="requests to send (default 32)")
    g.add_argument("--request-rate", type=rate, metavar="R", help="per second, or inf (default)")
    g.add_argument("--burstiness", type=positive, default=1.0, help="1 = Poisson, <1 burstier")
    g.add_argument("--ramp-up-strategy", choices=("linear", "exponential"),
                   help="a rate that grows over the run, in place of --request-rate")  # fmt: skip
    g.add_argument("--ramp-up-start-rps", type=positive, metavar="R", help="rate at the start")
    g.add_argument("--ramp-up-end-rps", type=positive, metavar="R", help="rate at the end")
    g.add_argument("--max-concurrency", type=at_least_one, help="requests in flight at most")
    g.add_argument("--num-warmups", type=not_negative, default=2, help="requests before measuring")
    g.add_argument("--random-input-len", type=int, default=64, metavar="N")
    g.add_argument("--random-output-len", type=int, default=32, metavar="N")
    g.add_argument("--ignore-eos", action=argparse.BooleanOptionalAction, default=True,
                   help="answers of exactly the asked length")  # fmt: skip
    g.add_argument("--seed", type=int, help="of lengths, arrivals and prompts (default 0)")


def _report_flags(g: Any) -> None:
    g.add_argument("--goodput", nargs="+", default=[], metavar="NAME:MS",
                   help="limits on ttft, tpot, e2el: ttft:200 tpot:50")  # fmt: skip
    g.add_argument("--percentile-metrics", default=",".join(METRICS), metavar="LIST")
    g.add_argument("--metric-percentiles", default="50,95,99", metavar="LIST")
    g.add_argument("--prices", metavar="LIST", help="per million tokens: input=A,output=B"
                   "[,cached_input=C][,currency=EUR]")  # fmt: skip
    g.add_argument("--json", action="store_true", help="print JSON, nothing else, to stdout")
    g.add_argument("--out", metavar="FILE", help="write the JSON to a file as well")
    g.add_argument("--trace", metavar="FILE", help="save the client's trace (JSONL)")
    g.add_argument("--save-result", action="store_true", help="write the JSON to --result-dir")
    g.add_argument("--save-detailed", action="store_true", help="with the per-request arrays")
    g.add_argument("--result-dir", default=".", metavar="DIR")
    g.add_argument("--result-filename", metavar="FILE")
    g.add_argument("--plot-timeline", action="store_true",
                   help="write the run's HTML report to --result-dir")  # fmt: skip
    g.add_argument("--metadata", nargs="+", default=[], metavar="K=V")


def workload_of(args: argparse.Namespace) -> Workload:
    """The workload file with the flags given on top, or one made of the flags alone."""
    _check_ramp(args)
    if args.workload is None:
        n = 32 if args.num_prompts is None else args.num_prompts
        return parse_workload(
            {
                "name": "random",
                "seed": args.seed or 0,
                "classes": [
                    {
                        "name": "random",
                        "prompt_tokens": args.random_input_len,
                        "output_tokens": args.random_output_len,
                    }
                ],
                "arrivals": _arrivals(args),
                "stop": {"num_prompts": n},
            },
            "flags",
        )
    workload = load_workload(args.workload)
    changes: dict[str, Any] = {}
    given = (args.request_rate, args.max_concurrency, args.ramp_up_strategy)
    if any(value is not None for value in given):
        changes["arrivals"] = _arrivals(args)
    if args.num_prompts is not None:
        changes["stop"] = workload.stop.model_dump() | {"num_prompts": args.num_prompts}
    if args.seed is not None:
        changes["seed"] = args.seed
    return workload.with_(**changes) if changes else workload


def _arrivals(args: argparse.Namespace) -> dict[str, Any]:
    """As vLLM reads its flags: no rate means all at once, or a closed loop under a concurrency."""
    if args.ramp_up_strategy is not None:
        names = ("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps", "burstiness")
        return {"kind": "ramp_up", **{name: getattr(args, name) for name in names}}
    request_rate = math.inf if args.request_rate is None else args.request_rate
    if math.isinf(request_rate) and args.max_concurrency is not None:
        return {"kind": "closed", "concurrency": args.max_concurrency}
    return {"kind": "gamma", "request_rate": request_rate, "burstiness": args.burstiness}


def _check_ramp(args: argparse.Namespace) -> None:
    names = ("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps")
    missing = [f"--{name.replace('_', '-')}" for name in names if getattr(args, name) is None]
    if 0 < len(missing) < len(names):
        raise ValueError(f"a ramp needs {' and '.join(missing)} too")
    if not missing and args.request_rate is not None:
        raise ValueError("--ramp-up-strategy is in place of --request-rate: give one of them")


def limits_of(args: argparse.Namespace, workload: Workload) -> dict[str, Limits] | Limits | None:
    """--goodput for every class, else the workload's own."""
    if not args.goodput:
        own = workload.limits
        return own if any(limits.any for limits in own.values()) else None
    values: dict[str, float] = {}
    for text in args.goodput:
        name, _, value = text.partition(":")
        if name not in GOODPUT:
            raise ValueError(f"--goodput {text!r}: write NAME:MS with NAME of {', '.join(GOODPUT)}")
        try:
            values[GOODPUT[name]] = float(value)
        except ValueError:
            raise ValueError(f"--goodput {text!r}: {value!r} is no number of ms") from None
    return Limits(**values)


def metrics_of(args: argparse.Namespace) -> list[str]:
    """--percentile-metrics by vLLM's names; ValueError for another name."""
    chosen = [part.strip() for part in args.percentile_metrics.split(",")]
    unknown = [name for name in chosen if name not in METRICS]
    if unknown:
        raise ValueError(f"--percentile-metrics {unknown[0]!r}: choose of {','.join(METRICS)}")
    return chosen


def pairs(items: list[str], flag: str) -> dict[str, str]:
    """K=V flags as a dict; the value may hold '='."""
    result = {}
    for item in items:
        name, sign, value = item.partition("=")
        if not sign or not name.strip():
            raise ValueError(f"{flag} {item!r}: write NAME=VALUE")
        result[name.strip()] = value
    return result


def api_key(args: argparse.Namespace) -> str | None:
    """The key named by --api-key-env; never from a flag, which every user of the machine sees."""
    return os.environ.get(args.api_key_env) or None


def json_object(text: str) -> dict[str, Any]:
    """An option's JSON object."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object, like '{\"temperature\": 0}'")
    return value


def not_negative(text: str) -> int:
    """An option's whole number from 0 on."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text}: must be at least 0")
    return int(text)


def positive(text: str) -> float:
    """An option's finite number above 0."""
    value = float(text)
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text!r} must be a finite number > 0")
    return value


def rate(text: str) -> float:
    """An option's requests per second: above 0, or inf."""
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number > 0, or inf")
    return value

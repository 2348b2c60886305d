"""`llmlab bench serve`: measure any OpenAI-compatible server over HTTP, or this lab's own.

Without --base-url the engine is started here, as a process of its own, and measured over
loopback; its own trace is then shown beside the client's, so that transport is seen apart.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from llmlab.bench import serve_options as options
from llmlab.measure.calls import make_calls
from llmlab.measure.client import Endpoint, LoadClient, TokenCounter
from llmlab.measure.frames import error_message
from llmlab.measure.limits import Limits
from llmlab.measure.metrics import Summary, summarize
from llmlab.measure.pricing import Bill, Prices, bill
from llmlab.measure.stats import parse_percentiles
from llmlab.measure.workload import Workload
from llmlab.trace import RequestRecord, Trace

DEFAULT_MODEL = "smollm2-135m"
err = Console(stderr=True)


class Fault(Exception):
    """Something the user can put right: one sentence, exit status 2."""


@dataclass(frozen=True)
class Plan:
    """What the call asks for, checked before a server is looked at or started.

    counter, vocab_size: of --tokenizer, to count where the server does not.
    """

    workload: Workload
    limits: dict[str, Limits] | Limits | None
    percentiles: tuple[float, ...]
    metrics: list[str]
    prices: Prices | None
    metadata: dict[str, str]
    headers: dict[str, str]
    engine: dict[str, str]
    counter: TokenCounter | None
    vocab_size: int | None


@dataclass(frozen=True)
class Run:
    """A finished (or interrupted) measurement. server: the server's own trace, if it is ours."""

    workload: Workload
    trace: Trace
    summary: Summary
    server: Summary | None
    bill: Bill | None
    interrupted: bool


def main(argv: list[str]) -> int:
    """Exit status: 0; 1 if no request completed; 2 for a fault of the call; 130 on Ctrl-C."""
    args = options.parser().parse_args(argv)
    try:
        plan = read_plan(args)
        if args.base_url is None:
            run = _own_server(args, plan)
        else:
            run = measure(args, plan, args.base_url, own=False)
        _report(args, run, plan.metrics)
    except (Fault, ValueError, RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if run.interrupted:
        return 130
    return 0 if run.summary.all.counts.completed else 1


def read_plan(args: argparse.Namespace) -> Plan:
    """All that can be wrong with a call is said here; ValueError or Fault."""
    workload = options.workload_of(args)
    counter, vocab_size = _tokenizer(args.tokenizer)
    return Plan(
        workload=workload,
        limits=options.limits_of(args, workload),
        percentiles=tuple(dict.fromkeys((50.0, *parse_percentiles(args.metric_percentiles)))),
        metrics=options.metrics_of(args),
        prices=Prices.parse(args.prices) if args.prices else None,
        metadata=options.pairs(args.metadata, "--metadata"),
        headers=options.pairs(args.header, "--header"),
        engine=options.pairs(args.engine, "--engine"),
        counter=counter,
        vocab_size=vocab_size,
    )


def _own_server(args: argparse.Namespace, plan: Plan) -> Run:
    from llmlab.serve.child import child_server

    flags = ["--model", args.model or DEFAULT_MODEL]
    for name, value in plan.engine.items():
        flags += [f"--{name}"] if value in ("", "true") else [f"--{name}", value]
    with ExitStack() as stack:
        with err.status(f"starting {flags[1]}"):
            child = stack.enter_context(child_server(flags))
        args.model = child.model
        return measure(args, plan, child.base_url, own=True)


def measure(args: argparse.Namespace, plan: Plan, base_url: str, *, own: bool) -> Run:
    """Look at the server, warm it up, send the workload, sum up. Ctrl-C keeps what is there."""
    workload = plan.workload
    endpoint = Endpoint(
        base_url=base_url,
        model=args.model or "",
        api=options.ENDPOINTS[args.endpoint],
        api_key=None if own else options.api_key(args),
        headers=plan.headers,
        continuous_usage=own if args.continuous_usage is None else args.continuous_usage,
        timeout_s=args.request_timeout,
    )
    model, server_vocab = _look(endpoint)
    endpoint = replace(endpoint, model=endpoint.model or model)
    # Chat messages are text; a completion's prompt can be token ids, exact in number.
    vocab_size = None if endpoint.api == "chat" else plan.vocab_size or server_vocab
    body = {"temperature": 0, **args.extra_body}
    tag = secrets.token_hex(4)  # so that a server that knows an earlier run can tell them apart

    def calls(load: Workload, prefix: str) -> list[Any]:
        return make_calls(
            load.requests(),
            vocab_size=vocab_size,
            prefix=prefix,
            ignore_eos=args.ignore_eos,
            body=body,
        )

    if args.num_warmups:
        other = workload.with_(seed=workload.seed + 1, cancellations=[])
        _warm_up(endpoint, calls(other, f"warmup-{tag}-")[: args.num_warmups])
    planned = calls(workload, f"{tag}-")
    with _Progress(len(planned)) as progress:
        client = LoadClient(endpoint, count_tokens=plan.counter, on_end=progress.one_over)
        client.trace.meta |= {"workload": workload.to_dict(), "metadata": plan.metadata}
        interrupted = _send(client, planned, workload, args.max_concurrency)
    server = _server_side(endpoint, client.trace) if own and not interrupted else None
    return Run(
        workload=workload,
        trace=client.trace,
        summary=summarize(client.trace, limits=plan.limits, percentiles=plan.percentiles),
        server=None if server is None else summarize(server, percentiles=plan.percentiles),
        bill=bill(client.trace.requests.values(), plan.prices) if plan.prices else None,
        interrupted=interrupted,
    )


def _send(client: LoadClient, calls: list[Any], workload: Workload, limit: int | None) -> bool:
    """Run the load; True if Ctrl-C ended it."""
    if workload.arrivals.kind == "closed":
        limit = workload.arrivals.concurrency
    try:
        asyncio.run(
            client.run(
                calls,
                max_concurrency=limit,
                duration_s=workload.stop.duration_s,
                drain=workload.stop.drain,
            )
        )
    except KeyboardInterrupt:
        return True
    return False


def _warm_up(endpoint: Endpoint, calls: list[Any]) -> None:
    """Requests like the measured ones, with other prompts. If none works, neither will the rest."""
    client = LoadClient(endpoint)
    with err.status(f"warming up with {len(calls)} requests"):
        plain = [replace(call, t_sched_ns=None) for call in calls]
        asyncio.run(client.run(plain, max_concurrency=1))
    records = list(client.trace.requests.values())
    if records and not any(record.outcome == "completed" for record in records):
        raise Fault(f"every warm-up request failed: {records[0].reason}")


def _look(endpoint: Endpoint) -> tuple[str, int | None]:
    """(first model, its vocabulary if the server says so) from /v1/models."""
    url = endpoint.base_url.rstrip("/").removesuffix("/v1") + "/v1/models"
    try:
        response = httpx.get(url, headers=endpoint.request_headers(), timeout=20, trust_env=False)
    except httpx.HTTPError as error:
        raise Fault(f"no server at {endpoint.base_url}: {error}") from None
    if response.status_code == 401:
        raise Fault("the server wants an API key: set OPENAI_API_KEY, or --api-key-env NAME")
    try:
        card = response.json()["data"][0]
        vocab = card.get("vocab_size")
        return str(card["id"]), None if vocab is None else int(vocab)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        if endpoint.model:
            return endpoint.model, None
        said = endpoint.hide(error_message(response.text))
        raise Fault(f"{url} names no model ({said[:80]}); give --model NAME") from None


def _tokenizer(path: str | None) -> tuple[TokenCounter | None, int | None]:
    """(named counter, vocabulary size) of a tokenizer.json or a folder with one."""
    if path is None:
        return None, None
    from tokenizers import Tokenizer

    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise Fault(f"--tokenizer {path}: no such file; give a tokenizer.json")
    tokenizer = Tokenizer.from_file(str(file))
    name = file.parent.name if file.name == "tokenizer.json" else file.stem

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    return (name, count), int(tokenizer.get_vocab_size())


def _server_side(endpoint: Endpoint, client: Trace) -> Trace:
    """The server's own trace of the same requests."""
    text = httpx.get(f"{endpoint.base_url}/trace", timeout=60, trust_env=False).text
    whole = Trace.from_jsonl(text.splitlines(), "/trace")
    wanted = {f"{prefix}-{name}" for prefix in ("cmpl", "chatcmpl") for name in client.requests}
    kept = {name: record for name, record in whole.requests.items() if name in wanted}
    start = client.meta["t_start"]  # one machine, one monotonic clock
    return Trace(whole.meta, kept, [step for step in whole.steps if step.t_start >= start])


class _Progress:
    """A bar on stderr, where that is a terminal."""

    def __init__(self, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), "{task.description}")
        self._bar = Progress(*columns, console=err, transient=True, disable=not err.is_terminal)
        self._task = self._bar.add_task("", total=total)
        self._bad = 0

    def __enter__(self) -> _Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def one_over(self, record: RequestRecord) -> None:
        self._bad += record.outcome in ("failed", "rejected")
        self._bar.update(self._task, advance=1, description=f"{self._bad} bad" if self._bad else "")


def _report(args: argparse.Namespace, run: Run, metrics: list[str]) -> None:
    from llmlab.bench.serve_report import result, show

    data = result(run, detailed=args.save_detailed)
    if args.json:
        print(json.dumps(data, indent=2))
    else:
        show(run, metrics)
    text = json.dumps(data) + "\n"
    if args.out:
        Path(args.out).write_text(text, encoding="utf-8")
    if args.save_result or args.save_detailed:
        _result_path(args, run).write_text(text, encoding="utf-8")
    if args.plot_timeline:
        _write_timeline(args, run)
    if args.trace:
        run.trace.write_jsonl(args.trace)


def _result_path(args: argparse.Namespace, run: Run) -> Path:
    name = args.result_filename or f"{run.workload.name}-{os.getpid()}.json"
    return Path(args.result_dir) / name


def _write_timeline(args: argparse.Namespace, run: Run) -> None:
    """The HTML report, beside where the JSON would be; stderr says where, for --json's sake."""
    from llmlab.measure.report import write_html

    path = _result_path(args, run).with_suffix(".timeline.html")
    write_html(run.summary, path)
    print(f"request timeline and report: {path}", file=sys.stderr)

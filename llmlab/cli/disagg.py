"""`llmlab disagg`: prefill and decode in two processes, and what moved between them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from llmlab.cli.console import console
from llmlab.cli.failing import fail

if TYPE_CHECKING:
    from llmlab.engine.disaggregated import MovedRequest, PairResult

app = typer.Typer(add_completion=False, rich_markup_mode=None)
out = console()
err = console(stderr=True)

EXAMPLES = """\
Examples

\b
  llmlab disagg
  llmlab disagg --no-overlap
  llmlab disagg --prompt "$(cat letter.txt)" --prompt "Hello." --local-below 16
  llmlab disagg --model tiny --dtype float64 --json
  llmlab disagg --model tiny --kill prefill:during

One machine, no GPU: the two workers share its cores, so look at what moves and
who waits, not at the speed. Under torch's own launcher:

\b
  torchrun --nproc-per-node 2 -m llmlab.engine.disaggregated --json
"""

KILL_HELP = "Break it on purpose: prefill|decode:before|during|after, link:during or prefill:stop."


@app.command(epilog=EXAMPLES)
def disagg(
    model: Annotated[str, typer.Option(help="Name or path of the model.")] = "smollm2-135m",
    prompt: Annotated[
        list[str] | None, typer.Option(help="May be repeated; a few if not given.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens to write for each prompt.")] = 32,
    local_below: Annotated[
        int, typer.Option(help="Prompts with fewer tokens to compute are not moved.")
    ] = 64,
    overlap: Annotated[
        bool, typer.Option(help="Send a layer while the next one is computed.")
    ] = True,
    num_blocks: Annotated[
        int | None, typer.Option(help="KV blocks of the decode worker; few: back-pressure.")
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="Token budget of a step, on both sides.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    timeout: Annotated[float, typer.Option(help="Seconds of silence before giving up.")] = 20.0,
    kill: Annotated[str | None, typer.Option(help=KILL_HELP)] = None,
    compare: Annotated[
        bool, typer.Option(help="Run the prompts on one engine afterwards and compare.")
    ] = True,
    save: Annotated[
        Path | None, typer.Option("--out", help="Folder for both workers' traces (JSONL).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Compute prompts in one process and decode in another; move the KV cache.

    Long prompts are computed by the prefill worker and sent layer by layer; short ones stay on
    the decode worker. Under a minute with the real model on two cores.
    """
    given = dict(locals())
    try:
        result = run(given)
        if save is not None:
            save_traces(result, save)
    except KeyboardInterrupt:
        err.print("interrupted: both workers are stopped")
        raise typer.Exit(130) from None
    except (ValueError, OSError, RuntimeError) as error:
        fail(error)
    if as_json:
        print(json.dumps(result.to_dict(), indent=1, allow_nan=False))
    else:
        show(result)
    if result.tokens_equal is False:
        raise typer.Exit(1)


def run(given: dict[str, Any]) -> PairResult:
    """The pair that the options ask for, under a progress bar."""
    from llmlab.config import EngineConfig
    from llmlab.engine.disaggregated import run_pair
    from llmlab.engine.pair.job import DEFAULT_PROMPTS

    shared = {}
    if given["max_num_batched_tokens"] is not None:
        shared["max_num_batched_tokens"] = given["max_num_batched_tokens"]
    prefill = EngineConfig(**shared)
    blocks = given["num_blocks"]
    names = ("max_tokens", "local_below", "overlap", "dtype", "kill", "compare")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err, transient=True, disable=given["as_json"]) as bar:
        task = bar.add_task("starting two processes", total=None)

        def progress(done: int, total: int, what: str) -> None:
            bar.update(task, description=what, completed=done, total=total)

        return run_pair(
            given["model"],
            given["prompt"] or list(DEFAULT_PROMPTS),
            config=prefill if blocks is None else prefill.with_(num_blocks=blocks),
            prefill_config=prefill,
            timeout_s=given["timeout"],
            progress=progress,
            **{name: given[name] for name in names},
        )


def save_traces(result: PairResult, folder: Path) -> None:
    """prefill.jsonl, decode.jsonl and, if compared, colocated.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    for side in ("prefill", "decode", "colocated"):
        trace = getattr(result, f"{side}_trace")
        if trace is not None and trace.meta:
            trace.write_jsonl(folder / f"{side}.jsonl")
            err.print(f"wrote {folder / f'{side}.jsonl'}", soft_wrap=True)


def show(result: PairResult) -> None:
    """A row a request and what it means; fits 80 columns."""
    from llmlab.engine.pair.summary import sentences

    out.print(f"{result.model}, {result.dtype}, two processes on this machine's CPU")
    out.print()
    table = Table(box=None, pad_edge=False)
    table.add_column("request")
    for head in ("prompt", "moved", "MB", "prefill", "on wire", "visible", "to decode"):
        table.add_column(head, justify="right")
    table.add_column("prefilled", justify="left")
    for request in result.requests:
        table.add_row(*_row(request), style=None if request.outcome == "completed" else "red")
    out.print(table)
    out.print("prompt, moved: tokens. prefill, on wire, visible, to decode: ms", style="dim")
    out.print()
    out.print(sentences(result))
    reasons = {r.reason: None for r in result.requests if r.reason}
    for reason in reasons:
        names = ", ".join(r.request_id for r in result.requests if r.reason == reason)
        out.print(f"{names}: {reason}")


def _row(request: MovedRequest) -> list[str]:
    def ms(value: float | None) -> str:
        return "-" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"

    start, end = request.t_prefill_start, request.t_prefill_end
    took = None if start is None or end is None else (end - start) / 1e6
    where = {"remote": "apart", "local": "here, short", "retried": "here, retried"}[request.where]
    return [
        request.request_id,
        f"{request.prompt_tokens:,}",
        f"{request.moved_tokens:,}",
        f"{request.bytes / 1e6:.1f}",
        ms(took),
        ms(request.transfer_ms),
        ms(request.visible_ms),
        ms(request.handover_ms),
        where if request.outcome == "completed" else request.outcome,
    ]

"""`llmlab trace`: record a run, or take a recorded one, and write it for Perfetto."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmlab.cli.failing import fail
from llmlab.cli.metrics import err

if TYPE_CHECKING:
    from llmlab.trace import Trace

app = typer.Typer(add_completion=False, rich_markup_mode=None)

EXAMPLES = """\
Examples

\b
  llmlab trace --out run.json
  llmlab trace --policy continuous --max-num-batched-tokens 2048 --out whole.json
  llmlab trace --from saved.jsonl --out saved.json

Open the file in https://ui.perfetto.dev or chrome://tracing.
"""


@app.command(epilog=EXAMPLES)
def trace(
    out: Annotated[Path, typer.Option(help="Chrome trace to write.")] = Path("trace.json"),
    saved: Annotated[
        Path | None, typer.Option("--from", help="A saved trace (JSONL) instead of a run.")
    ] = None,
    model: Annotated[str, typer.Option(help="A model name, folder or .gguf.")] = "smollm2-135m",
    workload: Annotated[
        str, typer.Option(help="A shipped name or a file.")
    ] = "chat_and_documents_cpu",
    num_prompts: Annotated[int, typer.Option(help="Requests to send.")] = 8,
    policy: Annotated[str, typer.Option(help="chunked, continuous or static.")] = "chunked",
    max_num_batched_tokens: Annotated[int, typer.Option(help="Token budget of a step.")] = 256,
    max_num_seqs: Annotated[int, typer.Option(help="Most requests at once.")] = 16,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    kernels: Annotated[
        Path | None,
        typer.Option(help="Also write torch's profile; on CUDA always, beside --out."),
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Also write the trace as JSONL.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Record a run of the engine and write its requests and steps as a Chrome trace.

    On CUDA a second file holds the kernels by name of their part, from torch's profiler.
    """
    given = dict(locals())
    try:
        if saved is not None:
            from llmlab.trace import Trace

            report = write(Trace.read_jsonl(saved), out)
        else:
            report = record(given)
    except KeyboardInterrupt:
        err.print("interrupted")
        raise typer.Exit(130) from None
    except (ValueError, OSError) as error:
        fail(error)
    if as_json:
        print(json.dumps(report))
    else:
        lines = [f"{report['requests']} requests, {report['steps']} steps -> {report['out']}"]
        if report.get("kernels"):
            lines.append(f"kernels -> {report['kernels']}")
        print("\n".join([*lines, "Open it in https://ui.perfetto.dev"]))


def record(given: dict[str, Any]) -> dict[str, Any]:
    """Run the workload and write what was asked for."""
    from llmlab.engine import profile
    from llmlab.measure.arrival import Stop
    from llmlab.measure.run import run_workload
    from llmlab.measure.workload import load_workload

    load = load_workload(given["workload"]).with_(stop=Stop(num_prompts=given["num_prompts"]))
    device = profile.choose_device(given["device"])
    kernels = given["kernels"]
    if kernels is None and device == "cuda":
        kernels = given["out"].with_suffix(".kernels.json")
    with err.status("loading the model"):
        engine = profile.make_engine(given["model"], _config(given, load), _policy(given), device)
    with err.status("running") as status:

        def run() -> Trace:
            return run_workload(
                engine,
                load,
                progress=lambda over, planned: status.update(f"{over} of {planned} requests"),
                num_warmups=1,
            )

        trace = run() if kernels is None else profile.with_kernels(run, kernels)
    if given["save"] is not None:
        trace.write_jsonl(given["save"])
    return {**write(trace, given["out"]), "kernels": kernels and str(kernels), "device": device}


def write(trace: Trace, out: Path) -> dict[str, Any]:
    """Write the Chrome trace; what was written."""
    from llmlab.chrome_trace import to_chrome

    chrome = to_chrome(trace)
    out.write_text(json.dumps(chrome, allow_nan=False), encoding="utf-8")
    return {"out": str(out), "requests": len(trace.requests), "steps": len(trace.steps)}


def _config(given: dict[str, Any], load: Any) -> Any:
    """An engine with room for every request that may run at once."""
    from llmlab.config import EngineConfig

    longest = max(r.prompt_tokens + r.output_tokens for r in load.requests())
    blocks = -(-longest // EngineConfig.block_size)
    return EngineConfig(
        max_num_batched_tokens=given["max_num_batched_tokens"],
        max_num_seqs=given["max_num_seqs"],
        num_blocks=blocks * min(given["max_num_seqs"], given["num_prompts"]),
        max_model_len=longest,
    )


def _policy(given: dict[str, Any]) -> Any:
    from llmlab.sim.simulate import POLICIES

    name = given["policy"]
    if name not in POLICIES:
        raise ValueError(f"--policy {name}: must be one of {', '.join(POLICIES)}")
    return POLICIES[name]

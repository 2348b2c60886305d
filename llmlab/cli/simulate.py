"""`llmlab simulate`: a workload on a simulated server, and the truth about the simulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from llmlab.cli.console import console
from llmlab.cli.failing import fail

if TYPE_CHECKING:
    from llmlab.trace import Trace

app = typer.Typer(add_completion=False, rich_markup_mode=None)
out = console()
err = console(stderr=True)

EXAMPLES = """\
Examples

\b
  llmlab simulate --hardware h100 --model llama-3.1-8b
  llmlab simulate --users 64 --model qwen3-30b-a3b --hardware a100-80gb
  llmlab simulate --published
  llmlab simulate --list

Two GPUs, as one that prefills and one that decodes, and as two that do both

\b
  llmlab simulate --disaggregated 1P1D --interconnect infiniband-ndr
  llmlab simulate --replicas 2

Your own workload on your own hardware

\b
  llmlab simulate --workload mine.yaml --hardware-file my-gpu.yaml --hardware my-gpu

mine.yaml (the shipped ones, in data/workloads, are good starting points):

\b
  name: mine
  classes:
    - {name: chat, share: 3, prompt_tokens: 300, output_tokens: 200}
    - {name: report, share: 1, prompt_tokens: 6000, output_tokens: 800}
  arrivals: {kind: poisson, request_rate: 2.5}
  stop: {num_prompts: 200}

my-gpu.yaml (rates dense, in TFLOP/s; bandwidth and memory in 10^9 bytes):

\b
  hardware:
    my-gpu:
      peak_tflops: {fp16: 120, fp8: 240}
      bandwidth_gb_s: 600
      memory_gb: 24
      interconnect_gb_s: 32
"""

HARDWARE_HELP = 'Device: see --list; "this-machine" after llmlab calibrate.'


@app.command(epilog=EXAMPLES)
def simulate(
    workload: Annotated[str, typer.Option(help="A shipped name or a file.")] = "chat_and_documents",
    model: Annotated[str, typer.Option(help="Model: see --list.")] = "llama-3.1-8b",
    hardware: Annotated[str, typer.Option(help=HARDWARE_HELP)] = "h100-sxm",
    model_file: Annotated[Path | None, typer.Option(help="Models of your own.")] = None,
    hardware_file: Annotated[Path | None, typer.Option(help="Hardware of your own.")] = None,
    constants: Annotated[str | None, typer.Option(help="Fitted constants: see --list.")] = None,
    policy: Annotated[str, typer.Option(help="chunked, continuous or static.")] = "chunked",
    max_num_batched_tokens: Annotated[int, typer.Option(help="Token budget of a step.")] = 2048,
    max_num_seqs: Annotated[int, typer.Option(help="Most requests at once.")] = 256,
    tensor_parallel: Annotated[int, typer.Option(help="Devices that share the model.")] = 1,
    weights: Annotated[
        str | None, typer.Option(help="fp32, fp16, bf16, fp8, int8 or int4; bf16 unless given.")
    ] = None,
    kv: Annotated[str | None, typer.Option(help="The same for cached keys and values.")] = None,
    disaggregated: Annotated[
        str | None, typer.Option(help="Pools of prefill and decode workers: 1P1D, 2P1D, ...")
    ] = None,
    interconnect: Annotated[
        str | None, typer.Option(help="Link between pools: see --list; else the device's own.")
    ] = None,
    local_below: Annotated[
        int, typer.Option(help="Shorter prompts are computed by the decode worker.")
    ] = 64,
    replicas: Annotated[int, typer.Option(help="Equal workers that share the requests.")] = 1,
    gpu_memory_utilization: Annotated[float, typer.Option(help="Share of memory used.")] = 0.9,
    users: Annotated[
        int | None, typer.Option(help="A closed loop of this many users instead of the workload.")
    ] = None,
    prompt_tokens: Annotated[int, typer.Option(help="With --users.")] = 1024,
    output_tokens: Annotated[int, typer.Option(help="With --users.")] = 128,
    seed: Annotated[int | None, typer.Option(help="Of the workload's draws.")] = None,
    save: Annotated[Path | None, typer.Option("--out", help="Write the trace (JSONL).")] = None,
    published: Annotated[
        bool, typer.Option("--published", help="Predictions beside published measurements.")
    ] = False,
    truth: Annotated[
        bool, typer.Option("--truth", help="Predict a run on this machine, then run it.")
    ] = False,
    list_: Annotated[bool, typer.Option("--list", help="What can be named.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Serve a workload on a simulated GPU, with the scheduler that the real engine runs.

    Nothing is run on a GPU: a cost model predicts each step, see --published for how well.
    """
    given = dict(locals())
    try:
        if list_:
            show_list(as_json)
        elif published:
            show_published(as_json)
        elif truth:
            show_truth(as_json)
        else:
            show_run(given)
    except KeyboardInterrupt:
        err.print("interrupted")
        raise typer.Exit(130) from None
    except (ValueError, OSError) as error:
        fail(error)


def show_run(given: dict[str, Any]) -> None:
    """Simulate and print the summary of `llmlab metrics`, marked as simulated."""
    from llmlab.cli.metrics import show_summary
    from llmlab.measure.limits import limits_of
    from llmlab.measure.metrics import summarize
    from llmlab.sim.pools import moved_summary

    trace = run(given)
    if given["save"] is not None:
        trace.write_jsonl(given["save"])
        err.print(f"wrote {given['save']}")
    moved = moved_summary(trace) if "moves" in trace.meta else None
    summary = summarize(trace, limits=limits_of(trace))
    summary.meta.pop("moves", None)  # one row a request; `--out` keeps them
    if given["as_json"]:
        found = summary.to_dict() | ({} if moved is None else {"disaggregated": moved})
        print(json.dumps(found, indent=1, allow_nan=False))
        return
    out.print(_title(trace.meta), soft_wrap=True)
    if moved is not None:
        out.print(_moved(moved), soft_wrap=True)
    out.print()
    show_summary(summary)


def _title(meta: dict[str, Any]) -> str:
    """What was simulated, in a line."""
    devices = f"{meta['tensor_parallel']} x {meta['hardware']}"
    if "pools" in meta:
        devices = f"{meta['pools']}, each {devices}, over {meta['interconnect']['name']}"
    elif meta.get("replicas", 1) > 1:
        devices = f"{meta['replicas']} replicas, each {devices}"
    tokens = meta["config"]["num_blocks"] * meta["config"]["block_size"]
    return (
        f"SIMULATED: {meta['model']} on {devices}, {meta['policy']}, {tokens:,} tokens of KV cache"
    )


def _moved(moved: dict[str, Any]) -> str:
    """What went over the link, and how much of it showed."""
    lines = [
        f"{moved['requests_moved']} prompts moved, {moved['requests_local']} stayed local: "
        f"{moved['bytes_moved']:,} bytes (the formula: {moved['bytes_formula']:,})"
    ]
    if moved["requests_moved"]:
        transfer, visible = moved["transfer_ms"], moved["visible_ms"]
        lines.append(
            f"a transfer keeps the link busy for {transfer['p50']:.2f} ms at the median; "
            f"{visible['p50']:.2f} ms of it show (p95 {visible['p95']:.2f})"
        )
    lines += [
        f"{worker}: {queue['max_waiting']} waiting at most, {queue['mean_waiting']:.1f} on average"
        for worker, queue in moved["queues"].items()
    ]
    return "\n".join(lines)


def run(given: dict[str, Any]) -> Trace:
    """The trace that the options ask for."""
    from llmlab.measure.workload import load_workload
    from llmlab.perf.hardware import load_hardware
    from llmlab.perf.machine import THIS_MACHINE
    from llmlab.perf.models import load_model_config
    from llmlab.sim import simulate as sim
    from llmlab.sim.load import ClosedLoop
    from llmlab.sim.pools import simulate_replicas
    from llmlab.sim.step_time import load_constants

    load: Any
    users = given["users"]
    if users is None:
        load = load_workload(given["workload"])
    else:
        load = ClosedLoop(users, 4 * max(users, 1), given["prompt_tokens"], given["output_tokens"])
    device: Any = given["hardware"]
    if device != THIS_MACHINE:
        device = load_hardware(device, given["hardware_file"])
    name = given["constants"]
    knobs = ("seed", "tensor_parallel", "gpu_memory_utilization")
    limits = ("max_num_batched_tokens", "max_num_seqs")
    options: dict[str, Any] = {
        "constants": None if name is None else load_constants(name),
        "precision": _precision(given, device == THIS_MACHINE),
        **{knob: given[knob] for knob in (*knobs, *limits)},
    }
    what = (load, load_model_config(given["model"], given["model_file"]), device)
    if given["disaggregated"] is not None:
        return _apart(given, what, options)
    if given["interconnect"] is not None:
        raise ValueError("--interconnect: links pools, so it needs --disaggregated (say 1P1D)")
    if given["replicas"] != 1:
        return simulate_replicas(*what, given["replicas"], policy=given["policy"], **options)
    return sim.simulate(*what, policy=given["policy"], **options)


def _apart(given: dict[str, Any], what: tuple[Any, Any, Any], options: dict[str, Any]) -> Trace:
    """A run on pools; their policy is the real pair's, so there is none to choose."""
    from llmlab.perf.interconnect import load_interconnect
    from llmlab.sim.pools import simulate_disaggregated

    for option, usual in (("policy", "chunked"), ("replicas", 1)):
        if given[option] != usual:
            raise ValueError(f"--{option}: does not go with --disaggregated; leave it out")
    name = given["interconnect"]
    return simulate_disaggregated(
        *what,
        given["disaggregated"],
        interconnect=None if name is None else load_interconnect(name, given["hardware_file"]),
        local_below=given["local_below"],
        **options,
    )


def _precision(given: dict[str, Any], here: bool) -> Any:
    from llmlab.perf.cost import Precision

    if given["weights"] is None and given["kv"] is None and here:
        return None  # as this machine's engine stores them
    return Precision(given["weights"] or "bf16", given["kv"] or "bf16")


def show_list(as_json: bool) -> None:
    """Names of models, devices, constants and workloads."""
    from llmlab.measure.workload import names
    from llmlab.perf.hardware import hardware_catalog
    from llmlab.perf.interconnect import interconnect_catalog
    from llmlab.perf.machine import THIS_MACHINE
    from llmlab.perf.models import models_catalog
    from llmlab.sim.step_time import constants_catalog

    found = {
        "models": list(models_catalog().entries),
        "hardware": [*hardware_catalog().entries, THIS_MACHINE],
        "interconnects": list(interconnect_catalog().entries),
        "constants": list(constants_catalog().entries),
        "workloads": names(),
    }
    if as_json:
        print(json.dumps(found, indent=1))
        return
    for kind, entries in found.items():
        out.print(Text.assemble((kind, "bold"), f"  {', '.join(entries)}"))


def show_truth(as_json: bool) -> None:
    """Predict and run the mixed trace of this machine."""
    from llmlab.bench.truth import measure, table

    if as_json:
        print(json.dumps(measure(), indent=1))
        return
    with err.status("predicting") as status:
        found = measure(progress=status.update)
    out.print(table(found))


def show_published(as_json: bool) -> None:
    """Predictions beside measurements, with constants that have and have not seen the row."""
    from llmlab.cli.published import show
    from llmlab.sim.published import published_report

    if as_json:
        print(json.dumps(published_report(), indent=1, allow_nan=False))
        return
    with err.status("simulating") as status:
        report = published_report(progress=lambda row: status.update(f"simulating {row}"))
    show(report, out)

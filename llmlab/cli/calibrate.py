"""`llmlab calibrate`: fit the simulator's constants to this machine, from real engine steps."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from html import escape
from typing import Annotated, Any

import typer
from rich.table import Table

from llmlab.cli.console import console
from llmlab.cli.failing import fail

app = typer.Typer(add_completion=False)
out = console()
err = console(stderr=True)

EXAMPLES = (
    "Examples:  llmlab calibrate   ·   llmlab calibrate --json   ·   "
    "then: llmlab simulate --hardware this-machine --model smollm2-135m"
)

FEWEST_SHAPES = 12  # twice as many as constants

MEANING = {
    "compute_efficiency": "of the measured matrix rate",
    "bandwidth_efficiency": "of the measured read bandwidth",
    "attention_compute_efficiency": "the same, in attention",
    "attention_bandwidth_efficiency": "the same, reading cached keys and values",
    "step_overhead": "once per step",
    "request_overhead": "per request in a step",
}


@app.command(epilog=EXAMPLES)
def calibrate(
    model: Annotated[str, typer.Option(help="Name or path of the model.")] = "smollm2-135m",
    seconds: Annotated[float, typer.Option(min=5.0, help="Most time for engine steps.")] = 40.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Measure this machine and real engine steps (under a minute), fit, and keep the result.

    Close what else computes first: a busy machine is measured as a slow one.
    """
    try:
        if as_json:
            kept = run(model, seconds)
        else:
            with err.status("calibrating") as status:
                kept = run(model, seconds, lambda what: status.update(f"measuring {what}"))
    except KeyboardInterrupt:
        err.print("interrupted: nothing was kept")
        raise typer.Exit(130) from None
    except (ValueError, OSError) as error:
        more = ". Set LLMLAB_DATA_DIR to a folder that can be written"
        fail(f"{error}{more if isinstance(error, OSError) else ''}")
    if as_json:
        print(json.dumps(kept, indent=1))
    else:
        show(kept)


def run(model_name: str, budget_s: float, progress: Any = None) -> dict[str, Any]:
    """Measure, fit, save; returns what was saved, with `path` and `took_s`."""
    from llmlab.engine import load_model
    from llmlab.perf import calibrate as measured
    from llmlab.perf.machine import save_machine
    from llmlab.sim.fit import fit_steps, rounded

    start = time.perf_counter()
    model = load_model(model_name)
    ceilings = measured.measure_ceilings("cpu", 5, progress)
    steps = measured.time_engine_steps(model, budget_s, progress)
    merged = measured.median_by_shape(steps)
    if len(merged) < FEWEST_SHAPES:
        raise ValueError(
            f"only {len(merged)} kinds of engine steps fitted into {budget_s:g} s: close what "
            "else computes on this machine, or give more --seconds"
        )
    cost = measured.cost_model(model)
    pairs = [(step.shape, step.seconds) for step in merged]
    constants, error = fit_steps(pairs, cost, ceilings.hardware())
    content = {
        "hardware": ceilings.entry(),
        "constants": rounded(constants),
        "precision": asdict(cost.precision),
        "model": model.config.name,
        "fitted_on": f"{len(steps)} engine steps of {len(merged)} shapes, {model.config.name}",
        "median_abs_error": round(error, 4),
    }
    path = save_machine(content)
    return {**content, "path": str(path), "took_s": round(time.perf_counter() - start, 1)}


CONSTANT_HEAD = ["constant", "value", "what it is"]


def show(kept: dict[str, Any]) -> None:
    """Print what was fitted; fits 80 columns."""
    table = Table(box=None, pad_edge=False)
    for name in CONSTANT_HEAD:
        table.add_column(name, justify="right" if name == "value" else "left")
    for row in _constants(kept):
        table.add_row(*row)
    out.print(table)
    for line in _notes(kept):
        out.print(line, soft_wrap=True)


def page(kept: dict[str, Any]) -> Any:
    """What was fitted, in a notebook: a table that follows its width, or the same as text."""
    from llmlab.viz.show import Shown, table_html, table_text

    table = ("What was fitted", CONSTANT_HEAD, _constants(kept))
    return Shown(
        None,
        lambda: table_html(*table) + "".join(f"<p>{escape(line)}</p>" for line in _notes(kept)),
        lambda: "\n".join([table_text(*table), *_notes(kept)]),
    )


def _constants(kept: dict[str, Any]) -> list[list[str]]:
    rows = []
    for name, meaning in MEANING.items():
        value = kept["constants"].get(name)
        if value is not None:
            share = name.endswith("efficiency")
            text = f"{100 * value:.0f} %" if share else f"{value * 1e3:.2f} ms"
            rows.append([name, text, meaning])
    return rows


def _notes(kept: dict[str, Any]) -> list[str]:
    hardware = kept["hardware"]
    rates = ", ".join(f"{v * 1e3:,.0f} GFLOP/s {k}" for k, v in hardware["peak_tflops"].items())
    return [
        f"ceilings: {hardware['bandwidth_gb_s']:.1f} GB/s read, {rates}",
        f"fitted on {kept['fitted_on']}: median error {100 * kept['median_abs_error']:.1f} %, "
        f"in {kept['took_s']:.0f} s",
        f"kept in {kept['path']}",
    ]

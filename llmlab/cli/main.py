"""The `llmlab` command: one file a command group, mounted here, loaded only when called.

Heavy imports (torch, pandas, plotly) live inside the commands, and a group's module is imported
only when its command runs, so that `llmlab --help` answers at once.
"""

from __future__ import annotations

import importlib
import io
import sys
from typing import Any

from typer.core import TyperGroup
from typer.main import get_command

# name -> (module in llmlab.cli, one line of help). The order is that of a learner's day.
COMMANDS = {
    "labs": ("labs", "Copy the labs into work/, open JupyterLab, reset one, check them all."),
    "doctor": ("doctor", "What this machine is and what each lab can do on it."),
    "calibrate": ("calibrate", "Fit the simulator's constants to this machine."),
    "quiz": ("quiz", "Practise questions by topic, level and role."),
    "interview": ("interview", "A timed mock interview that ends in a report."),
    "student": ("student", "Say who you are, to get numbers of your own."),
    "report": ("hand_in", "Write your hand-in from your attempts."),
    "simulate": ("simulate", "Run a workload on a simulated GPU."),
    "sweep": ("sweep", "Run a grid of configurations and show the best."),
    "serve": ("serve", "Serve the engine over an OpenAI-compatible HTTP API."),
    "disagg": ("disagg", "Prefill and decode in two processes; what moves between them."),
    "bench": ("bench", "Benchmarks: sched, sim, sweep, cpu, gpu, serve."),
    "metrics": ("metrics", "The four numbers, and the rest, of a saved trace."),
    "compare": ("compare", "Compare two runs, or say why they cannot be compared."),
    "trace": ("trace", "Record a run and export it for Perfetto."),
    "kernels": ("kernels", "Compile the Triton kernels and show what they use."),
    "items": ("items", "Check worksheets and questions; show what is covered."),
    "grade": ("grade", "Grade a folder of hand-ins."),
    "sheet": ("sheet", "Write each student's own numbers."),
}


class LazyGroup(TyperGroup):
    """A group that knows its commands by name and imports one only when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module, _ = COMMANDS[cmd_name]
        command = get_command(importlib.import_module(f"llmlab.cli.{module}").app)
        command.name = cmd_name
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write_usage("llmlab", "COMMAND [options]")
        formatter.write_paragraph()
        formatter.write_text("Learn how an LLM server spends its time.")
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])
        formatter.write_paragraph()
        formatter.write_text("Examples: llmlab labs --open, llmlab doctor, llmlab COMMAND --help")


def main() -> None:
    """Entry point of the console script; Ctrl-C ends with status 130 and no traceback."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal of another locale shows "?" for a sign it has not: words say the same.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    # Who types the name alone wants to know what there is.
    LazyGroup(name="llmlab")(sys.argv[1:] or ["--help"], prog_name="llmlab")


if __name__ == "__main__":
    main()

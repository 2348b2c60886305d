"""`python -m llmlab.bench NAME [options]`: one benchmark a module, each with its own --help.

Only the standard library here, so that `gpu` runs on a machine with little else than torch.
"""

from __future__ import annotations

import importlib
import os
import sys

BENCHES = {
    "sched": "scheduler: planned tokens per second, cost against waiting requests",
    "sim": "simulator: simulated tokens per second, time of one slider move",
    "cpu": "this engine and its peers on the CPU, beside the machine's floors",
    "gpu": "kernels and engine on a CUDA GPU, beside the card's ceilings",
    "sweep": "a sweep: one worker against several, memory over 10,000 cells",
    "serve": "a server over HTTP: the four numbers, per class",
}


def usage() -> str:
    """What there is, and two examples."""
    rows = "\n".join(f"  {name:<6} {text}" for name, text in BENCHES.items())
    return (
        "usage: llmlab bench NAME [options]\n\n"
        f"{rows}\n\n"
        "example: llmlab bench sched --json\n"
        "         llmlab bench cpu --help"
    )


def main(argv: list[str] | None = None) -> int:
    """Run one benchmark; returns its exit status (2: unknown name, 130: interrupted)."""
    args = sys.argv[1:] if argv is None else argv
    if not args or args[0] in ("-h", "--help"):
        print(usage())
        return 0
    name, *rest = args
    if name not in BENCHES:
        print(f"no benchmark {name!r}; there are: {', '.join(BENCHES)}", file=sys.stderr)
        return 2
    module = importlib.import_module(f"llmlab.bench.{name}")
    try:
        status = int(module.main(rest) or 0)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # `| head` has seen enough; nothing more can be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())

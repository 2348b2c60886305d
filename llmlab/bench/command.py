"""What the command lines of the small benchmarks share. Only the standard library."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import fill
from typing import Any


def command(name: str, description: str | None, epilog: str = "") -> argparse.ArgumentParser:
    """A parser for `llmlab bench NAME` that has --json and --out already."""
    parser = argparse.ArgumentParser(
        prog=f"llmlab bench {name}",
        description=_narrow(description or ""),
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--out", type=Path, help="also write the JSON to this file")
    return parser


def _narrow(text: str) -> str:
    """Paragraphs of prose, filled to a terminal of 80 columns; indented lines as they are."""
    parts = text.strip().split("\n\n")
    return "\n\n".join(part if part.startswith(" ") else fill(part, 79) for part in parts)


def at_least_one(text: str) -> int:
    """An option's whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be at least 1")
    return int(text)


def deliver(
    args: argparse.Namespace, figures: dict[str, Any], table: Callable[[dict[str, Any]], str]
) -> int:
    """Print the figures, then write them to --out: 0, or 2 if that cannot be written."""
    text = json.dumps(figures, indent=1)
    print(text if args.json else table(figures))
    if args.out:
        try:
            args.out.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            print(f"--out {args.out}: cannot be written: {error}", file=sys.stderr)
            return 2
    return 0

"""What the README shows is so: its paths exist and its example prints what it says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_path_named_exists():
    paths = re.findall(r"`((?:llmlab|tests|data|labs|solutions)/[\w./]*)`", TEXT)
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.slow
def test_the_scheduler_example_prints_what_it_says():
    code, printed = re.findall(
        r"```python\n(from llmlab\.measure.*?)```\n\n```\n(.*?)```", TEXT, re.S
    )[0]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    assert said.getvalue() == printed

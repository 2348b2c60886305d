"""What the README promises about safety, scanned for and tried."""

from __future__ import annotations

import ast
import json
import re
import sys
from functools import cache
from pathlib import Path

import httpx
import pytest

from llmlab.check.grade import Grader, files_in
from llmlab.check.roster import Enrolled
from llmlab.cli.labs import JUPYTER
from llmlab.measure.metrics import summarize
from llmlab.measure.report import html
from llmlab.serve.settings import ServeConfig
from llmlab.trace import Trace

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted([*(ROOT / "llmlab").rglob("*.py"), *(ROOT / "labs" / "source").glob("*.py")])
# Pickle in any dress, and calls that run text as code or as a shell line.
NEVER = {
    "pickle.load", "pickle.loads", "marshal.loads", "shelve.open", "joblib.load", "dill.loads",
    "torch.load", "yaml.unsafe_load", "yaml.full_load", "os.system", "os.popen",
    "numpy.load", "np.load", "pandas.read_pickle", "pd.read_pickle",
}  # fmt: skip
# Text as code: the learner's own kernel code in its own process, on its own machine.
RUNS_TEXT: set[str] = set()
# What these make is text, numbers, dates, lists and dicts.
PLAIN_LOADERS = {"yaml.SafeLoader", "yaml.CSafeLoader", "yaml.BaseLoader"}


@cache
def calls(path: Path) -> list[tuple[str, ast.Call]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [(dotted(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]


def dotted(node: ast.expr) -> str:
    """`a.b.c` as it is written; what is no name stands as "?"."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{dotted(value)}.{name}"
    return "?"


def test_no_pickle_no_unsafe_yaml_no_shell() -> None:
    for path in SOURCES:
        look_for_code_that_runs(path)


def look_for_code_that_runs(path: Path) -> None:
    for name, node in calls(path):
        assert name not in NEVER, f"{path.name}:{node.lineno}: {name}"
        named = name != "yaml.load" or "Loader" in {k.arg for k in node.keywords}
        assert named, f"{path.name}:{node.lineno}: yaml.load without its loader"
        shell = [k for k in node.keywords if k.arg == "shell"]
        assert not shell, f"{path.name}:{node.lineno}: shell="
        if name in ("eval", "exec", "compile", "__import__"):
            assert str(path.relative_to(ROOT)) in RUNS_TEXT, f"{path.name}:{node.lineno}: {name}"
    text = path.read_text(encoding="utf-8")
    # The name of an error that a process pool raises is no pickle.
    text = text.replace("from pickle import PicklingError", "")
    assert not re.search(r"^\s*(import|from) (pickle|marshal|shelve|dill|joblib)\b", text, re.M)


def test_yaml_is_read_by_loaders_of_plain_data_only() -> None:
    loaders = re.compile(r"yaml\.\w*Loader")
    for path in SOURCES:
        found = set(loaders.findall(path.read_text(encoding="utf-8")))
        assert found <= PLAIN_LOADERS, path.name


def test_every_template_escapes() -> None:
    """A page that holds a name or an answer is made by one environment with autoescape on."""
    made = [(p, n) for p in SOURCES for name, n in calls(p) if name.endswith("Environment")]
    assert made
    for path, node in made:
        if path.relative_to(ROOT).parts[:2] in {("llmlab", "check"), ("llmlab", "measure")}:
            options = {k.arg: ast.unparse(k.value) for k in node.keywords}
            assert options.get("autoescape") not in (None, "False"), f"{path.name}:{node.lineno}"
    # As it is: the library's own script, and JSON in which < > & are written as \\u003c and so on.
    for template in (ROOT / "llmlab").rglob("*.j2"):
        bare = set(re.findall(r"(\w+)\s*\|\s*safe", template.read_text(encoding="utf-8")))
        assert bare <= {"plotly_js", "figure", "plots_json"}, template.name


def test_a_name_in_a_trace_is_text_on_the_page() -> None:
    trace = Trace(meta={"source": "<script>alert(1)</script>"})
    page = html(summarize(trace), "<img src=x onerror=alert(1)>")
    assert "<img src=x" not in page
    assert "<script>alert(1)" not in page


def test_servers_listen_on_this_machine_only_unless_told_and_then_want_a_key() -> None:
    assert ServeConfig().host == "127.0.0.1"
    with pytest.raises(ValueError, match="API"):
        ServeConfig(host="0.0.0.0")
    assert "--ServerApp.ip=127.0.0.1" in JUPYTER
    told = [p.name for p in SOURCES if re.search(r"""["'](0\.0\.0\.0|::)["']""", p.read_text())]
    assert told == []
    notebook = (ROOT / "llmlab" / "cli" / "labs.py").read_text(encoding="utf-8")
    assert not re.search(
        r"token=['\"]{2}|password=['\"]{2}|disable_check_xsrf|allow_origin", notebook
    )


def test_the_key_is_compared_in_constant_time_and_never_shown() -> None:
    guard = (ROOT / "llmlab" / "serve" / "guard.py").read_text(encoding="utf-8")
    assert "compare_digest(" in guard
    key = "a-key-of-some-length"
    assert key not in repr(ServeConfig(api_key=key))


def test_a_hand_in_cannot_point_outside_its_folder(tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps({"kind": "llmlab-handin", "student": "ada"}))
    folder = tmp_path / "handins"
    folder.mkdir()
    (folder / "ada.json").symlink_to(secret)
    (folder / "more").symlink_to(tmp_path)
    grader = Grader([Enrolled("ada", "Ada")])
    rows = [grader.grade_file(path, path.name) for path in files_in(folder)]
    assert {row.reason for row in rows} == {"a link; links are not followed"}


def test_a_hand_in_is_data_and_never_runs(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    code = f"open({str(mark)!r}, 'w').write('x')\ncheck('B12.gaps', __import__('os').getpid())"
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "outputs": [], "source": code,
            "execution_count": None}  # fmt: skip
    path = tmp_path / "ada.ipynb"
    path.write_text(
        json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cell]})
    )
    row = Grader([Enrolled("ada", "Ada")]).grade_file(path, "ada.ipynb")
    assert row.scores == {}
    assert not mark.exists()


def test_nothing_is_sent_home() -> None:
    """Names of hosts in the code are addresses to read, local ones, or examples."""
    allowed = re.compile(r"127\.0\.0\.1|localhost|example\.(com|org)|\[|\{")
    for path in SOURCES:
        if path.is_relative_to(ROOT / "labs" / "source"):
            continue
        for _, node in calls(path):
            for text in [a.value for a in node.args if isinstance(a, ast.Constant)]:
                if isinstance(text, str) and re.match(r"https?://", text):
                    assert allowed.search(text) or "perfetto" in text, f"{path.name}: {text}"
    assert httpx.__name__ in sys.modules

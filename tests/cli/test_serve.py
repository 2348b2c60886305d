"""`llmlab serve` up to where it listens; the rest is in tests/serve/test_command.py."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from llmlab.cli import serve as module
from llmlab.serve.settings import ServeConfig


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("tiny", "tiny"),
        ("owner/Model-0.6B", "owner/Model-0.6B"),
        ("here/Qwen3-0.6B", "Qwen3-0.6B"),
        ("here/Small.Q4_1.gguf", "Small.Q4_1"),
    ],
)
def test_a_model_is_called_by_its_own_name(tmp_path, monkeypatch, given, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here" / "Qwen3-0.6B").mkdir(parents=True)
    (tmp_path / "here" / "Small.Q4_1.gguf").touch()
    assert module.model_name(given) == name


def test_a_file_that_cannot_be_read_is_not_blamed_on_the_port(tmp_path):
    (tmp_path / "config.json").mkdir()
    done = CliRunner().invoke(module.app, ["--model", str(tmp_path), "--device", "cpu"])
    assert done.exit_code == 2
    assert "directory" in done.stderr
    assert "--port" not in done.stderr


def test_a_name_with_brackets_is_shown_as_it_is(capsys):
    module._announce("http://127.0.0.1:1", ServeConfig(model_name="[red]x[/red]"), as_json=False)
    assert "[red]x[/red] on http://127.0.0.1:1" in capsys.readouterr().out

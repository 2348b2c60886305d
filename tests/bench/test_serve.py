"""The call of `llmlab bench serve`; what it measures is in tests/serve/test_command.py."""

from __future__ import annotations

import pytest

from llmlab.bench import serve


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--prices", "input=1"], "prices"),
        (["--goodput", "speed:1"], "--goodput"),
        (["--metric-percentiles", "150"], "--metric-percentiles"),
        (["--percentile-metrics", "zzz"], "--percentile-metrics"),
        (["--header", "novalue"], "--header"),
        (["--metadata", "novalue"], "--metadata"),
        (["--tokenizer", "/no/such"], "--tokenizer"),
        (["--num-warmups", "-1"], "--num-warmups: -1: must be at least 0"),
        (["--max-concurrency", "0"], "--max-concurrency: 0"),
    ],
)
def test_a_fault_of_the_call_is_said_before_a_server_is_started(capsys, monkeypatch, args, words):
    def started(*_, **__):
        raise AssertionError("a model would be loaded for nothing")

    monkeypatch.setattr("llmlab.serve.child.child_server", started)
    try:
        status = serve.main(args)
    except SystemExit as ended:  # by the parser of the arguments
        status = ended.code
    assert status == 2
    text = capsys.readouterr()
    assert words in text.err
    assert text.out == ""

"""schemathesis reads the server's OpenAPI page and sends what it allows, and what it does not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from llmlab.engine import Engine, load_model
from llmlab.serve.server import running
from llmlab.serve.settings import ServeConfig


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("examples", "seconds"),
    [pytest.param(20, 20, marks=pytest.mark.slow), pytest.param(60, 120, marks=pytest.mark.full)],
)
def test_no_request_makes_a_5xx(examples, seconds):
    engine = Engine(load_model("tiny"))
    with running(engine, ServeConfig(port=0)) as url:
        done = subprocess.run(
            [
                sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json",
                "--checks", "not_a_server_error,status_code_conformance,content_type_conformance",
                "--mode", "all", "--max-examples", str(examples), "--max-time", str(seconds),
                "--seed", "1", "--no-color", "--workers", "1",
            ],
            capture_output=True,
            text=True,
        )  # fmt: skip
        print(done.stdout[-3000:])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    outcomes = {record.outcome for record in engine.trace.requests.values()}
    assert "completed" in outcomes, "some of it reached the engine"
    assert engine.scheduler.num_blocks_used == 0
    engine.scheduler.check_integrity()

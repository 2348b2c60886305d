"""`llmlab sweep`, as a learner types it: in this process, interrupted, killed, and on Dask."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from llmlab.cli import sweep

WORKLOAD = """
name: mine
classes:
  - {name: chat, share: 3, prompt_tokens: 30, output_tokens: 6, limits: {ttft_ms: 40}}
  - {name: report, share: 1, prompt_tokens: 400, output_tokens: 3}
arrivals: {kind: poisson, request_rate: 20}
stop: {num_prompts: 8}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMLAB_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "load.yaml").write_text(WORKLOAD)
    return tmp_path


def run(*args, code=0):
    words = ["--workload", "load.yaml", "--workers", "0", *(str(arg) for arg in args)]
    done = CliRunner().invoke(sweep.app, words, env={"NO_COLOR": "1", "COLUMNS": "80"})
    assert done.exit_code == code, done.output
    return done


def test_the_best_cells_are_shown_in_80_columns_and_said_to_be_simulated(folder):
    axes = ("--rate", "10,400", "--max-num-seqs", "1,8", "--mix", "3:1")
    more = ("--policy", "chunked,static", "--hardware", "h100-sxm,a100-80gb")
    page = run(*axes, *more, "--top", "2").stdout
    assert page.startswith("SIMULATED: 16 of 16 cells; the best by goodput_req_s")
    assert max(map(len, page.splitlines())) <= 80
    assert "model llama-3.1-8b" in page
    assert "a100-80gb" in page or "h100-sxm" in page
    assert len([line for line in page.splitlines() if " 400 " in line]) == 2


def test_json_is_json_and_a_second_run_only_reads(folder):
    first = run("--rate", "10,20", "--json", "--csv", "all.csv", "--html", "map.html")
    found = json.loads(first.stdout)
    assert found["simulated"] is True
    assert (found["cells"], found["done"], found["failed"]) == (2, 2, 0)
    assert [cell["values"]["rate"] for cell in found["best"]] == [20.0, 10.0]
    before = Path("sweep.jsonl").read_bytes()
    assert json.loads(run("--rate", "10,20", "--json").stdout) == found
    assert Path("sweep.jsonl").read_bytes() == before
    assert len(Path("all.csv").read_text().splitlines()) == 3
    assert "goodput_req_s" in Path("map.html").read_text()


def test_a_failed_cell_is_reported_and_the_rest_is_kept(folder):
    done = run("--model", "llama-3.1-70b,llama-3.1-8b", code=1)
    assert "SIMULATED: 1 of 2 cells" in done.stdout
    assert "bytes are missing" in " ".join(done.stdout.split())
    assert json.loads(run("--model", "llama-3.1-70b,llama-3.1-8b", "--json", code=1).stdout)[
        "failed"
    ]


def test_a_grid_file_and_an_option_that_goes_before_it(folder):
    Path("grid.yaml").write_text("rate: 10:20:10\nmax_num_seqs: 1,8\n")
    found = json.loads(run("--grid", "grid.yaml", "--max-num-seqs", "4", "--json").stdout)
    assert [cell["values"]["max_num_seqs"] for cell in found["best"]] == [4, 4]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--rate", "fast"), "requests/s > 0"),
        (("--hardware", "h100-sx"), "did you mean h100-sxm"),
        (("--best", "goodness"), "must be one of ttft_p50_ms"),
        (("--engine", "--hardware", "h100-sxm"), "runs on this machine"),
        (("--engine", "--weights", "fp8"), "--weights"),
        (("--grid", "none.yaml"), "cannot be read"),
        (("--rate", "1", "--users", "1"), "one of them"),
        (("--out", "load.yaml"), "not a results file"),
        (("--html", "m.html", "--rate", "1:50:1"), "a map shows 40 at most"),
        (("--scheduler", "tcp://127.0.0.1:1"), "leave --workers out"),
    ],
)
def test_bad_input_says_what_to_do(folder, args, said):
    assert said in run(*args, code=2).stderr


def test_another_grid_into_the_same_file_is_refused(folder):
    run("--rate", "10")
    refused = run("--rate", "20", code=2).stderr
    assert "axes.rate" in refused
    assert "--overwrite" in refused
    assert "1 of 1" in run("--rate", "20", "--overwrite").stdout


# ------------------------------------------------------------------ from outside


def command(folder, *args):
    words = [sys.executable, "-m", "llmlab.cli.main", "sweep", "--workload", "load.yaml"]
    return subprocess.Popen(
        [*words, *map(str, args)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "80"},
    )


def cells(folder):
    path = folder / "sweep.jsonl"
    return path.read_bytes().count(b"\n") - 1 if path.exists() else 0


def until(folder, count, running):
    begin = time.monotonic()
    while cells(folder) < count:
        assert running.poll() is None, running.communicate()
        assert time.monotonic() - begin < 100
        time.sleep(0.01)


MANY = ("--rate", "10:40:10", "--seed", "0:9:1", "--workers", "2")  # 40 cells
posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")


@posix
@pytest.mark.slow
@pytest.mark.parametrize("where", [(), ("--dask",)])
def test_a_run_killed_outright_goes_on_and_does_every_cell_once(folder, where):
    running = command(folder, *MANY, *where)
    until(folder, 5, running)
    running.send_signal(signal.SIGKILL)
    running.communicate(timeout=30)
    before = cells(folder)
    assert 5 <= before < 40
    again = command(folder, *MANY, *where, "--json")
    out, err = again.communicate(timeout=200)
    assert again.returncode == 0, err
    assert f"{before} of 40 cells are there; going on" in err
    assert json.loads(out)["done"] == 40
    lines = [json.loads(line) for line in (folder / "sweep.jsonl").open()][1:]
    assert Counter(line["cell"] for line in lines) == dict.fromkeys(range(40), 1)


@posix
@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(folder):
    running = command(folder, *MANY)
    until(folder, 3, running)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=30)
    assert running.returncode == 130
    assert "the same command goes on" in " ".join(err.split())
    assert "Traceback" not in err
    assert cells(folder) >= 3


@pytest.mark.slow
def test_the_real_engine_runs_a_grid(folder):
    args = ("--max-num-batched-tokens", "16,32", "--max-num-seqs", "2", "--num-prompts", "4")
    running = command(folder, "--engine", "--model", "tiny", *args, "--json")
    out, err = running.communicate(timeout=200)
    assert running.returncode == 0, err
    assert "one after the other" in " ".join(err.split())
    found = json.loads(out)
    assert found["simulated"] is False
    assert [cell["figures"]["completed"] for cell in found["best"]] == [4, 4]
    assert all(cell["figures"]["output_tok_s"] > 0 for cell in found["best"])

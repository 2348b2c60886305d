"""The command line that the small benchmarks share."""

from __future__ import annotations

import json

import pytest

from llmlab.bench import cpu, gpu, sched, serve, sim, sweep

SMALL = {sched: ["--repeats", "1", "--steps", "2", "--requests", "2"], sim: ["--repeats", "1"]}


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Figures in no time."""
    monkeypatch.setattr(sched, "WAITING", (1, 2))
    monkeypatch.setattr(sim, "decode_load", sim.slider_load)
    monkeypatch.setattr(sim, "slider_load", lambda: sim.poisson_arrivals(4.0, 2, [("a", 9, 2)]))


@pytest.mark.parametrize("bench", SMALL, ids=lambda bench: bench.__name__.rpartition(".")[2])
def test_figures_are_printed_also_where_they_cannot_be_written(bench, capsys, tmp_path):
    out = tmp_path / "figures.json"
    assert bench.main([*SMALL[bench], "--json", "--out", str(out)]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(out.read_text())
    assert bench.main([*SMALL[bench], "--out", str(tmp_path / "no" / "where.json")]) == 2
    shown = capsys.readouterr()
    assert "cannot be written" in shown.err
    assert "{" not in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80


def test_a_number_below_one_is_refused_by_its_option(capsys):
    for bench, option in ((sched, "--steps"), (sim, "--repeats"), (sweep, "--cells")):
        for text in ("0", "-1", "x", "²"):
            with pytest.raises(SystemExit) as ended:
                bench.main([f"{option}={text}"])
            assert ended.value.code == 2
            assert f"{option}: {text}: must be at least 1" in capsys.readouterr().err
    assert sweep.main(["--workers", "1"]) == 2


def test_every_help_fits_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    for bench in (cpu, gpu, sched, serve, sim, sweep):
        with pytest.raises(SystemExit):
            bench.main(["--help"])
        lines = capsys.readouterr().out.splitlines()
        assert [line for line in lines if len(line) > 80] == [], bench.__name__

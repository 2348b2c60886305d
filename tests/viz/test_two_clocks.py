"""Panels on two clocks: the simulator's answer stands, however long a real run takes to end."""

from __future__ import annotations

import threading

import pytest

from llmlab.engine import Engine, load_model
from llmlab.perf.hardware import Hardware
from llmlab.viz.panels import ChunkPanel, LoadPanel, RacePanel, UtilizationPanel
from llmlab.viz.panels.controls import REAL, SIMULATED
from tests.viz.idle import wait_idle

CEILINGS = Hardware("demo", "Demo", {"fp32": 1e12}, bandwidth=1e11, memory=1e9, source="measured")


@pytest.fixture(scope="module")
def model():
    return load_model("tiny")


def load_panel(model):
    panel = LoadPanel(users=(1,), real_model=model, real_users=(1, 2))
    panel.prompt.box.value, panel.output.box.value = 16, 8
    return panel


def test_a_run_that_was_left_for_the_simulator_does_not_come_back(model, monkeypatch):
    step, begun, release = Engine.step, threading.Event(), threading.Event()

    def slow(self):
        begun.set()
        release.wait(30)
        return step(self)

    monkeypatch.setattr(Engine, "step", slow)
    monkeypatch.setattr("llmlab.viz.panels.two_clocks.STOP_WAIT_S", 0.0)  # a step takes longer
    for make in (
        RacePanel,
        lambda model: UtilizationPanel(model, CEILINGS),
        lambda model: ChunkPanel(model, real_requests=4),
        load_panel,
    ):
        panel = make(model)
        panel.where.value = REAL
        begun.clear()
        release.clear()
        panel.go.click()
        assert begun.wait(30)
        panel.where.value = SIMULATED
        said = panel.status.value
        assert "Simulated" in said, panel
        assert panel.live.busy
        release.set()
        wait_idle(panel.live)
        assert panel.status.value == said, panel
        figure = panel.strip if isinstance(panel, ChunkPanel) else panel.figure
        assert "simulated" in figure.layout.title.text, panel
        assert not panel.go.disabled

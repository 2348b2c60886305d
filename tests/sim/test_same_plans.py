"""One scheduler, two clocks: the simulator plans what the engine plans."""

from __future__ import annotations

import pytest

from llmlab.config import EngineConfig
from llmlab.engine import Engine, load_model
from llmlab.sched.chunked import Chunked
from llmlab.sched.continuous import Continuous
from llmlab.sched.request import SamplingParams
from llmlab.sched.static import Static
from llmlab.sim.load import Arrival
from llmlab.sim.simulator import Simulator
from llmlab.sim.step_time import FixedStepTime

STEP = 1000
# (before which step it arrives, prompt tokens, output tokens)
REQUESTS = [(0, 30, 9), (0, 7, 20), (0, 50, 3), (4, 12, 12), (5, 40, 8), (5, 3, 30), (40, 25, 5)]


@pytest.fixture(scope="module")
def tiny():
    return load_model("tiny")


@pytest.mark.parametrize("policy", [Chunked, Continuous, Static])
@pytest.mark.parametrize("blocks", [22, 200])
def test_engine_and_simulator_make_equal_plans_for_the_same_trace(tiny, policy, blocks):
    config = EngineConfig(
        max_num_batched_tokens=64 if policy is not Chunked else 16,
        max_num_seqs=4,
        block_size=4,
        num_blocks=blocks,
        max_model_len=64,
    )
    engine = Engine(tiny, config, scheduler=policy)
    names = []
    for index in range(200):
        for _, prompt, output in (r for r in REQUESTS if r[0] == index):
            params = SamplingParams(max_tokens=output, ignore_eos=True)
            names.append(engine.add(list(range(1, prompt + 1)), params))
        engine.step()
    # An engine that has nothing to do takes no step, so idle time shows in no record.
    simulator = Simulator(policy(config), FixedStepTime(STEP))
    trace = simulator.run(Arrival(at * STEP, prompt, output) for at, prompt, output in REQUESTS)
    as_simulated = {name: f"r{number}" for number, name in enumerate(names)}
    real = [
        (
            [(as_simulated[name], *rest) for name, *rest in step.scheduled],
            [as_simulated[name] for name in step.preempted],
            step.blocks_used,
        )
        for step in engine.trace.steps
    ]
    assert [(s.scheduled, s.preempted, s.blocks_used) for s in trace.steps] == real
    assert len(real) > 30
    if blocks == 22 and policy is Chunked:
        assert any(preempted for _, preempted, _ in real)

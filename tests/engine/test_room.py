"""Memory of an ordinary machine: what torch says on a CPU is understood, too large is refused."""

from __future__ import annotations

import pytest
import torch

from llmlab.config import EngineConfig
from llmlab.engine import Engine
from llmlab.engine.passes import out_of_memory
from llmlab.engine.runner import Runner
from llmlab.sched import SamplingParams


class Poor(Runner):
    """Asks a CPU for a pebibyte as soon as a step has more than eight tokens."""

    def _run(self, batch):
        if batch.num_tokens > 8:
            torch.empty(2**50, dtype=torch.uint8)
        return super()._run(batch)


def test_the_words_of_a_cpu_without_memory_are_known():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50, dtype=torch.uint8)
    assert out_of_memory(caught.value)
    assert not out_of_memory(RuntimeError("the sizes differ"))


def test_a_batch_too_large_for_a_cpu_names_the_number_that_fits_and_goes_on(tiny64, greedy_of):
    engine = Engine(tiny64, EngineConfig(max_num_batched_tokens=64), runner=Poor)
    prompt = list(range(40, 70))
    with pytest.warns(RuntimeWarning) as said:
        answer = list(engine.stream(prompt, SamplingParams(temperature=0.0, max_tokens=4)))
    assert [t for out in answer for t in out.token_ids] == greedy_of(tiny64, prompt, 4)
    assert "Set EngineConfig.max_num_batched_tokens = 7" in str(said[-1].message)
    assert engine.scheduler.num_blocks_used == 0


def test_a_pool_that_no_memory_holds_is_refused_before_it_is_made(tiny):
    with pytest.raises(ValueError, match=r"num_blocks = 1000000000: must be at most \d+ here"):
        Engine(tiny, EngineConfig(num_blocks=10**9))

"""Out of memory: smaller passes if they fit, the numbers that do, and an engine that goes on."""

from __future__ import annotations

import re
import warnings

import pytest
import torch

from llmlab.config import EngineConfig
from llmlab.engine import Engine
from llmlab.engine.runner import Runner
from llmlab.sched.request import SamplingParams
from tests.engine.lazy import HistoryRunner, history_model
from tests.engine.test_law5 import GREEDY, PROMPTS, config_of, outputs_of

BOTH = pytest.mark.parametrize("overlapped", [False, True])


def out_of_memory():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


class Small(Runner):
    """Memory for six tokens in a pass."""

    def _run(self, batch):
        return super()._run(batch) if batch.num_tokens <= 6 else out_of_memory()


@BOTH
def test_a_step_too_large_runs_in_passes_and_says_what_fits(tiny64, greedy_of, overlapped):
    prompts = [PROMPTS[1], PROMPTS[3], PROMPTS[2]]
    engine = Engine(tiny64, config_of(64), runner=Small, async_scheduling=overlapped)
    with pytest.warns(RuntimeWarning, match="max_num_batched_tokens = ") as caught:
        found = outputs_of(engine, prompts, GREEDY)
    assert found == [greedy_of(tiny64, prompt, 6) for prompt in prompts]
    tried = [re.search(r"going on with (\d+) at a time", str(w.message)) for w in caught]
    assert [found and found[1] for found in tried] == ["25", "12", "6"]  # of 50 tokens
    assert engine.runner.passes.most == 6
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        outputs_of(engine, [PROMPTS[3]], GREEDY)


class Poor(HistoryRunner):
    """Memory for steps of at most four tokens, however they are cut."""

    def forward(self, batch):
        return super().forward(batch) if len(batch.ids) <= 4 else out_of_memory()


def poor(overlapped, **changes):
    settings = {"max_num_batched_tokens": 16, "max_model_len": 40, "block_size": 4}
    config = EngineConfig(**settings | {"num_blocks": 40, "enable_prefix_caching": True} | changes)
    return Engine(history_model(), config, runner=Poor, async_scheduling=overlapped)


def ends_of(engine):
    outputs = {}
    while engine.has_work:
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
        engine.scheduler.check_integrity()
    assert engine.scheduler.num_blocks_used == 0
    return {
        name: ([t for o in outs for t in o.token_ids], outs[-1].finish_reason)
        for name, outs in outputs.items()
    }


@BOTH
def test_what_never_fits_fails_alone_and_the_others_are_served(overlapped):
    """One at a time: the long prompt meets nobody."""
    engine = poor(overlapped, max_num_seqs=1)
    names = [engine.add(list(range(n)), SamplingParams(max_tokens=5)) for n in (3, 9, 4)]
    with pytest.warns(RuntimeWarning, match="out of memory"):
        ends = ends_of(engine)
    alone = [list(poor(False).stream(list(range(n)), SamplingParams(max_tokens=5))) for n in (3, 4)]
    solo = [[t for o in outs for t in o.token_ids] for outs in alone]
    assert ends == {names[0]: (solo[0], "length"), names[1]: ([], "error"),
                    names[2]: (solo[1], "length")}  # fmt: skip
    record = engine.trace.requests[names[1]]
    assert (record.outcome, record.finish_reason) == ("failed", "error")
    assert record.reason == (
        "out of memory in a step of 9 tokens of 1 requests; up to 3 tokens and 1 requests have "
        "fitted. Set EngineConfig.max_num_batched_tokens = 3 and max_num_seqs = 1, or fewer "
        "num_blocks than 40"
    )


def test_a_token_on_its_way_is_said_before_the_step_behind_it_fails():
    engine = poor(True)
    short = engine.add([1, 2, 3], SamplingParams(max_tokens=9))
    assert engine.step() == []
    long = engine.add(list(range(9)), SamplingParams(max_tokens=9))
    with pytest.warns(RuntimeWarning, match="up to 3 tokens"):
        outputs = engine.step()
    told = [(o.request_id, len(o.token_ids), o.finish_reason) for o in outputs]
    assert told == [(short, 1, None), (short, 0, "error"), (long, 0, "error")]
    records = engine.trace.requests
    assert [records[n].completion_tokens for n in (short, long)] == [1, 0]
    assert not engine.has_work
    assert engine.scheduler.num_blocks_used == 0


@BOTH
def test_a_stream_says_why_it_ends(overlapped):
    engine = poor(overlapped)
    with (
        pytest.warns(RuntimeWarning),
        pytest.raises(RuntimeError, match="no step has fitted yet: set fewer num_blocks than 40"),
    ):
        list(engine.stream(list(range(9)), SamplingParams(max_tokens=2)))
    assert len(list(engine.stream([1, 2], SamplingParams(max_tokens=2)))) == 2

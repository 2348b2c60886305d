"""On a card: the engine with graphs says what torch's attention says, and no step waits twice."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CONFIG = {
    "max_num_batched_tokens": 64,
    "max_num_seqs": 8,
    "block_size": 16,
    "num_blocks": 128,
    "max_model_len": 256,
}


def engine_of(dtype: torch.dtype, **more):
    from llmlab.config import EngineConfig
    from llmlab.engine import Engine, load_model

    model = load_model("tiny-qwen3", dtype=dtype, device="cuda")
    return Engine(model, EngineConfig(**CONFIG), **more)


def tokens_of(engine, count: int = 24) -> dict[str, list[int]]:
    from llmlab.sched.request import SamplingParams

    for i, length in enumerate((5, 90, 33, 1, 64, 17)):
        prompt = [(7 * j + i) % 250 for j in range(length)]
        params = SamplingParams(max_tokens=count, ignore_eos=True)
        engine.add(prompt, params, request_id=f"r{i}")
    found: dict[str, list[int]] = {f"r{i}": [] for i in range(6)}
    while engine.has_work:
        for output in engine.step():
            found[output.request_id] += output.token_ids
    return found


def test_graphs_and_kernels_say_what_torch_says_in_float32():
    from llmlab.engine.runner import Runner

    expected = tokens_of(engine_of(torch.float32, attention="torch", runner=Runner))
    engine = engine_of(torch.float32)
    assert engine.runner.decode_sizes == [1, 2, 4, 6, 8]
    assert engine.runner.mixed_sizes == [16, 24, 32, 48, 64]
    assert tokens_of(engine) == expected


def test_a_replayed_graph_equals_the_launched_kernels():
    from functools import partial

    from llmlab.engine.cuda_runner import CudaRunner

    launched = engine_of(torch.bfloat16, runner=partial(CudaRunner, graphs=False))
    assert tokens_of(engine_of(torch.bfloat16)) == tokens_of(launched)


def test_launching_a_step_waits_for_nothing():
    """Any hidden synchronisation raises while tokens are fed, computed and drawn."""
    from llmlab.sched.request import SamplingParams

    engine = engine_of(torch.bfloat16)
    assert engine.async_scheduling
    params = [
        SamplingParams(max_tokens=9, ignore_eos=True),
        SamplingParams(max_tokens=9, ignore_eos=True, temperature=0.8, top_p=0.9, seed=1),
    ]
    for one in params:
        engine.add([1, 2, 3], one)
    engine.step()
    runner = engine.runner

    def guard(real):
        def guarded(*args):
            torch.cuda.set_sync_debug_mode("error")
            try:
                return real(*args)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        return guarded

    for name in ("feed", "forward", "launch_sample"):
        setattr(runner, name, guard(getattr(runner, name)))
    while engine.has_work:
        engine.step()
    steps = engine.trace.steps
    assert len(steps) == 9
    assert all(step.utilization["device_seconds"] > 0 for step in steps)


def test_overlapped_steps_say_what_steps_in_turn_say():
    for dtype in (torch.float32, torch.bfloat16):
        in_turn = tokens_of(engine_of(dtype, async_scheduling=False))
        assert tokens_of(engine_of(dtype, async_scheduling=True)) == in_turn


def test_without_a_number_the_pool_is_what_the_requests_can_use_of_the_card():
    from llmlab.config import EngineConfig
    from llmlab.engine import Engine, load_model

    model = load_model("tiny", dtype=torch.bfloat16, device="cuda")
    config = EngineConfig(**{k: v for k, v in CONFIG.items() if k != "num_blocks"})
    assert Engine(model, config).config.num_blocks == 8 * 256 // 16


def test_a_pool_too_large_for_the_card_says_what_fits():
    from llmlab.config import EngineConfig
    from llmlab.engine import Engine, load_model

    model = load_model("tiny", dtype=torch.bfloat16, device="cuda")
    config = EngineConfig(**{**CONFIG, "num_blocks": 2**34})
    with pytest.raises(ValueError, match=r"num_blocks = \d+: must be at most \d+"):
        Engine(model, config)


def test_the_benchmark_ends_in_time_and_nothing_is_wrong(tmp_path):
    import json
    import time

    from llmlab.bench import gpu

    out, start = tmp_path / "gpu.json", time.monotonic()
    assert gpu.main(["--out", str(out)]) == 0
    assert time.monotonic() - start < 8 * 60
    result = json.loads(out.read_text())
    for name, section in result["sections"].items():
        assert not section["status"].startswith("failed"), (name, section["status"])
        assert not [r for r in section["rows"] if str(r.get("status")).startswith("wrong")]

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


def test_a_decode_step_waits_for_the_card_once():
    """Any hidden synchronisation raises while the forward pass is launched."""
    from llmlab.sched.request import SamplingParams

    engine = engine_of(torch.bfloat16)
    engine.add([1, 2, 3], SamplingParams(max_tokens=9, ignore_eos=True))
    engine.step()
    runner, real = engine.runner, engine.runner.forward

    def guarded(batch):
        torch.cuda.set_sync_debug_mode("error")
        try:
            return real(batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    runner.forward = guarded
    for _ in range(4):
        engine.step()
    steps = engine.trace.steps
    assert all(step.utilization["device_seconds"] > 0 for step in steps)


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

"""The CUDA runner's logic on the CPU: kernels in the interpreter, no graphs, the same tokens."""

from __future__ import annotations

import warnings

import pytest
import torch

from llmlab.config import EngineConfig
from llmlab.engine import Engine, load_model
from llmlab.engine.runner import Runner, for_device
from llmlab.sched.plan import StepPlan
from llmlab.sched.request import Request, SamplingParams

pytest.importorskip("triton")

from llmlab.engine.cpu_runner import CpuRunner
from llmlab.engine.cuda_runner import CudaRunner
from llmlab.engine.step_buffers import StepBuffers

CONFIG = EngineConfig(
    max_num_batched_tokens=16, max_num_seqs=4, block_size=8, num_blocks=32, max_model_len=64
)
PROMPTS = [list(range(1, 24)), [7, 7, 9], list(range(100, 110))]


def tokens_of(engine: Engine, count: int = 3) -> dict[str, list[int]]:
    """Greedy tokens of the prompts, by request."""
    for i, prompt in enumerate(PROMPTS):
        params = SamplingParams(max_tokens=count, ignore_eos=True)
        engine.add(prompt, params, request_id=f"r{i}")
    found: dict[str, list[int]] = {f"r{i}": [] for i in range(len(PROMPTS))}
    while engine.has_work:
        for output in engine.step():
            found[output.request_id] += output.token_ids
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny", "tiny-qwen3"])
def test_a_toy_model_through_every_kernel_says_what_torch_says(name):
    """Chunked prefill (23 tokens, 16 a step), mixed steps, decodes: all kernels, two layers."""
    model = load_model(name)
    expected = tokens_of(Engine(model, CONFIG))
    assert tokens_of(Engine(model, CONFIG, attention="triton", runner=CudaRunner)) == expected


@pytest.mark.slow
def test_the_triton_attention_alone_is_a_name_too():
    model = load_model("tiny")
    assert tokens_of(Engine(model, CONFIG, attention="triton"), 2) == tokens_of(
        Engine(model, CONFIG), 2
    )


@pytest.mark.slow
def test_logits_of_the_fused_forward_are_torchs():
    """Not only the argmax: every logit of a mixed step, in float32."""
    model = load_model("tiny-qwen3")
    seen: list[list[torch.Tensor]] = [[], []]
    for kind, log in zip((Runner, CudaRunner), seen, strict=True):

        class Logging(kind):  # type: ignore[misc, valid-type]
            def forward(self, batch, log=log):
                log.append(super().forward(batch).clone())
                return log[-1]

        tokens_of(Engine(model, CONFIG, attention="triton", runner=Logging), 2)
    for torch_logits, fused in zip(*seen, strict=True):
        torch.testing.assert_close(fused, torch_logits, atol=2e-4, rtol=1e-4)


class Scarce(CudaRunner):
    """A card on which more than 6 tokens in one pass run out of memory."""

    def _run(self, batch):
        if batch.num_tokens > 6:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return super()._run(batch)


@pytest.mark.slow
def test_out_of_memory_names_the_number_that_fits_and_goes_on():
    model = load_model("tiny")
    engine = Engine(model, CONFIG, attention="triton", runner=Scarce)
    with pytest.warns(RuntimeWarning, match="max_num_batched_tokens = [48]") as caught:
        found = tokens_of(engine, 2)
    assert found == tokens_of(Engine(model, CONFIG), 2)
    assert len(caught) == 2  # 16 -> 8 -> 4, then never again
    assert engine.runner.passes.most == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.add([5] * 9, SamplingParams(max_tokens=1))
        engine.step()


@pytest.mark.slow
def test_drawing_for_fewer_requests_at_a_time_gives_the_same_tokens(monkeypatch):
    """The sampler runs out of memory with more than one row: halves of halves, same draws."""
    from llmlab.engine import cuda_runner

    def scarce(draws, real=cuda_runner._sample):
        if len(draws[1]) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(draws)

    model = load_model("tiny")
    expected = tokens_of(Engine(model, CONFIG), 2)
    monkeypatch.setattr(cuda_runner, "_sample", scarce)
    engine = Engine(model, CONFIG, runner=CudaRunner)
    with pytest.warns(RuntimeWarning, match="max_num_seqs = 1, or fewer num_blocks"):
        assert tokens_of(engine, 2) == expected


@pytest.mark.slow
def test_a_step_larger_than_the_buffers_still_runs():
    """A scheduler of one's own may know no token budget."""

    class Narrow(CudaRunner):
        def __init__(self, *args):
            super().__init__(*args)
            self.buffers = StepBuffers(4, 4, 8)

    model = load_model("tiny")
    engine = Engine(model, CONFIG, attention="triton", runner=Narrow)
    assert tokens_of(engine, 2) == tokens_of(Engine(model, CONFIG), 2)


@pytest.mark.slow
def test_a_learners_attention_runs_between_the_kernels():
    calls = []

    def mine(q, k_cache, v_cache, batch):
        from llmlab.engine.attention import paged_attention

        calls.append(q.shape)
        return paged_attention(q, k_cache, v_cache, batch)

    model = load_model("tiny")
    assert tokens_of(Engine(model, CONFIG, attention=mine, runner=CudaRunner), 2) == tokens_of(
        Engine(model, CONFIG), 2
    )
    assert calls


def test_the_default_follows_the_device():
    model = load_model("tiny")
    assert for_device(model, None, None) == ("torch", CpuRunner)
    assert for_device(load_model("tiny", dtype=torch.float64), None, None) == ("torch", Runner)
    model.device = "cuda"
    assert for_device(model, None, None) == ("triton", CudaRunner)
    assert for_device(model, "torch", Runner) == ("torch", Runner)


def test_device_times_are_read_only_after_a_token_was_read_back():
    """A step without a token has no read-back to wait for: its time is asked for later."""
    asked = []

    class Timed(Runner):
        count = 0

        def timer(self):
            self.count += 1
            return lambda step=self.count: asked.append(step) or step / 10

    engine = Engine(load_model("tiny"), CONFIG, runner=Timed)
    engine.add([1] * 40, SamplingParams(max_tokens=2, ignore_eos=True))
    engine.step()
    engine.step()  # 16 and 16 of 40 prompt tokens: nothing sampled
    assert asked == []
    engine.step()
    assert asked == [1, 2, 3]
    engine.step()
    assert [s.utilization for s in engine.trace.steps] == [
        {"device_seconds": t} for t in (0.1, 0.2, 0.3, 0.4)
    ]


class Padded(CudaRunner):
    """Every step padded as for a graph; its static batch is launched instead of replayed."""

    def __init__(self, *args):
        super().__init__(*args)
        self.decode_sizes, self.mixed_sizes, self.keys = [1, 2, 4], [4, 16], []

    def _replay(self, key):
        self.keys.append(key)
        return self._run(self._static_batch(key))


@pytest.mark.slow
def test_padded_steps_say_what_unpadded_ones_say():
    model = load_model("tiny-qwen3")
    engine = Engine(model, CONFIG, attention="triton", runner=Padded)
    assert tokens_of(engine) == tokens_of(Engine(model, CONFIG))
    kinds = {kind for kind, _ in engine.runner.keys}
    assert kinds == {"decode", "mixed"}
    assert len(engine.runner.keys) == len(engine.trace.steps)  # none ran unpadded


@pytest.mark.slow
def test_a_padded_step_writes_to_its_own_slots_alone():
    model = load_model("tiny")
    engine = Engine(model, CONFIG, attention="triton", runner=Padded)
    pool = engine.runner.kv.k.fill_(7.0)
    engine.runner.kv.v.fill_(7.0)
    engine.add([3, 4, 5], SamplingParams(max_tokens=2, ignore_eos=True))
    while engine.has_work:
        engine.step()
    written = (pool[0].flatten(0, 1) != 7.0).any(-1).any(-1)
    assert written.sum() == 4  # three prompt tokens and one answer token


def test_only_the_batch_that_was_built_last_may_be_replayed():
    runner = Padded(load_model("tiny"), CONFIG, "triton")
    request = Request("r", [1, 2, 3, 4], block_ids=[0])
    first = runner.build(StepPlan([(request, 2)]))
    second = runner.build(StepPlan([(request, 3)]))
    assert not runner.has_graph(first)
    assert runner.has_graph(second)
    assert not runner.has_graph(runner.build(StepPlan([(Request("s", [1] * 60), 0)] * 9)))

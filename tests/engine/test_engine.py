"""The engine from outside: what goes in, what comes out, what is refused, what is recorded."""

from __future__ import annotations

import itertools
import math
import threading
import time

import pytest
import torch

from llmlab.config import EngineConfig
from llmlab.engine import Engine
from llmlab.engine.attention import paged_attention
from llmlab.sched.chunked import Chunked
from llmlab.sched.request import SamplingParams

CONFIG = EngineConfig(
    max_num_batched_tokens=32, block_size=4, num_blocks=64, max_model_len=128, max_num_seqs=8
)


def engine_of(model, **changes) -> Engine:
    return Engine(model, CONFIG.with_(**changes))


def run(engine, ids=None):
    """Step until idle; outputs by request id."""
    outputs: dict = {}
    for _ in range(10_000):
        if not engine.has_work:
            break
        for out in engine.step():
            outputs.setdefault(out.request_id, []).append(out)
        engine.scheduler.check_integrity()
    assert not engine.has_work
    assert engine.scheduler.num_blocks_used == 0
    return outputs if ids is None else [outputs[i] for i in ids]


def tokens_of(outputs):
    return [t for out in outputs for t in out.token_ids]


def text_of(outputs):
    return "".join(out.text for out in outputs)


def params(**changes):
    return SamplingParams(**{"max_tokens": 6, "ignore_eos": True} | changes)


# ---------------------------------------------------------------- the way of a request


def test_a_stream_gives_each_token_once_and_joins_to_the_text(tiny):
    engine = engine_of(tiny)
    outs = list(engine.stream("hello", params(max_tokens=12)))
    assert [len(o.token_ids) for o in outs] == [1] * 12
    assert text_of(outs) == tiny.tokenizer.decode(tokens_of(outs))
    assert [o.finish_reason for o in outs] == [None] * 11 + ["length"]
    assert all(a.t < b.t for a, b in itertools.pairwise(outs))
    assert engine.scheduler.num_blocks_used == 0


def test_a_prompt_in_chunks_emits_nothing_before_its_end(tiny64, greedy_of):
    prompt = list(range(20))
    expected = greedy_of(tiny64, prompt, 3)
    for budget in (1, 2, 3, 5, 7, 8, 64):
        engine = engine_of(tiny64, max_num_batched_tokens=budget)
        engine.add(prompt, params(max_tokens=3))
        quiet = math.ceil(20 / budget) - 1
        assert [engine.step() for _ in range(quiet)] == [[]] * quiet
        (outs,) = run(engine).values()
        assert tokens_of(outs) == expected


def test_positions_and_context_of_a_chunk_are_what_the_model_sees(tiny64):
    seen = []

    def spy(q, k_cache, v_cache, batch):
        seen.append((batch.positions.tolist(), list(batch.context_lens)))
        return paged_attention(q, k_cache, v_cache, batch)

    engine = Engine(tiny64, CONFIG.with_(max_num_batched_tokens=5), attention=spy)
    engine.add(list(range(12)), params(max_tokens=1))
    run(engine)
    chunks = seen[:: tiny64.config.num_hidden_layers]
    assert chunks == [([0, 1, 2, 3, 4], [5]), ([5, 6, 7, 8, 9], [10]), ([10, 11], [12])]


def test_an_exact_prefix_hit_recomputes_in_place_and_changes_nothing(tiny64):
    for length in (7, 8, 9):
        seen, logits = [], []

        def spy(q, k_cache, v_cache, batch, seen=seen):
            seen.append(batch.positions.tolist())
            return paged_attention(q, k_cache, v_cache, batch)

        engine = Engine(tiny64, CONFIG.with_(enable_prefix_caching=True), attention=spy)
        forward = engine.runner.forward

        def record(batch, forward=forward, logits=logits):
            logits.append(forward(batch))
            return logits[-1]

        engine.runner.forward = record
        runs = []
        for _ in range(3):
            seen.clear(), logits.clear()
            outs = list(engine.stream(range(length), params(temperature=0)))
            # A hit covers full blocks, and never the last token: it must be computed.
            runs.append((tokens_of(outs), seen[0][-1], torch.cat(logits)))
        for tokens, last, values in runs[1:]:
            assert tokens == runs[0][0]
            assert last == length - 1
            torch.testing.assert_close(values, runs[0][2], atol=1e-9, rtol=0)
        records = list(engine.trace.requests.values())
        assert records[0].cached_tokens == 0
        assert records[1].cached_tokens == (length - 1) // 4 * 4


def test_max_tokens_one_ends_in_the_prefill_step(tiny):
    engine = engine_of(tiny)
    engine.add("abc", params(max_tokens=1))
    (out,) = engine.step()
    assert (out.finish_reason, len(out.token_ids)) == ("length", 1)
    assert not engine.has_work
    assert engine.scheduler.num_blocks_used == 0


class Fixed:
    """A model whose next tokens are given: wraps a runner, replaces its logits."""

    def __init__(self, engine, tokens):
        self.engine, self.tokens = engine, iter(tokens)
        self.forward, engine.runner.forward = engine.runner.forward, self

    def __call__(self, batch):
        logits = torch.zeros_like(self.forward(batch))
        logits[:, next(self.tokens)] = 9.0
        return logits


def test_eos_as_the_first_token_ends_with_stop_and_no_text(tiny):
    eos = tiny.tokenizer.eos_token_id
    engine = engine_of(tiny)
    Fixed(engine, [eos])
    (out,) = list(engine.stream("abc", SamplingParams(max_tokens=5)))
    assert (out.token_ids, out.text, out.finish_reason) == ([eos], "", "stop")
    (record,) = engine.trace.requests.values()
    assert (record.completion_tokens, record.outcome) == (1, "completed")


def test_eos_as_the_last_allowed_token_is_a_stop(tiny):
    eos = tiny.tokenizer.eos_token_id
    engine = engine_of(tiny)
    Fixed(engine, [65, 66, eos])
    outs = list(engine.stream("abc", SamplingParams(max_tokens=3)))
    assert (text_of(outs), outs[-1].finish_reason) == ("AB", "stop")


def test_ignore_eos_runs_to_max_tokens(tiny):
    eos = tiny.tokenizer.eos_token_id
    engine = engine_of(tiny)
    Fixed(engine, [65, eos, 66, 67])
    outs = list(engine.stream("abc", params(max_tokens=4)))
    assert (text_of(outs), outs[-1].finish_reason) == ("ABC", "length")


def test_a_stop_token_is_no_part_of_the_text_unless_asked(tiny):
    for include, text in ((False, "AB"), (True, "ABX")):
        engine = engine_of(tiny)
        Fixed(engine, [65, 66, 88, 67])
        stop = params(stop_token_ids=(88,), include_stop_str_in_output=include)
        outs = list(engine.stream("abc", stop))
        assert (text_of(outs), outs[-1].finish_reason, outs[-1].stop_reason) == (text, "stop", 88)


def test_a_stop_string_ends_the_request_and_frees_its_blocks(tiny):
    engine = engine_of(tiny)
    Fixed(engine, b"The quick brown fox jumps")
    outs = list(engine.stream("abc", params(max_tokens=40, stop="own fox")))
    assert text_of(outs) == "The quick br"
    assert (outs[-1].finish_reason, outs[-1].stop_reason) == ("stop", "own fox")
    assert not engine.has_work
    assert engine.scheduler.num_blocks_used == 0


def test_a_stop_string_on_the_last_token_is_a_stop(tiny):
    engine = engine_of(tiny)
    Fixed(engine, b"abc")
    outs = list(engine.stream("x", params(max_tokens=3, stop=["bc"])))
    assert (text_of(outs), outs[-1].finish_reason) == ("a", "stop")


def test_a_held_tail_is_released_at_the_length_limit(tiny):
    engine = engine_of(tiny)
    Fixed(engine, b"brown fox")
    outs = list(engine.stream("x", params(max_tokens=7, stop=["own fox"])))
    assert (text_of(outs), outs[-1].finish_reason) == ("brown f", "length")


def test_end_tokens_do_not_come_before_min_tokens(tiny):
    eos = tiny.tokenizer.eos_token_id
    engine = engine_of(tiny)
    Fixed(engine, [eos] * 10)
    outs = list(engine.stream("abc", SamplingParams(max_tokens=8, min_tokens=3)))
    assert tokens_of(outs)[:3] == [0, 0, 0]  # the banned id gives way to the next best
    assert tokens_of(outs)[3:] == [eos]


def test_a_stop_string_before_min_tokens_does_not_stop(tiny):
    engine = engine_of(tiny)
    Fixed(engine, b"abababxx")
    outs = list(engine.stream("x", params(max_tokens=8, min_tokens=4, stop="ab")))
    assert (text_of(outs), outs[-1].finish_reason) == ("abab", "stop")
    assert len(tokens_of(outs)) == 6


def test_logprobs_come_one_for_each_token(tiny):
    engine = engine_of(tiny)
    outs = list(engine.stream("abc", params(logprobs=3)))
    for out in outs:
        (entry,) = out.logprobs
        assert entry.token_id == out.token_ids[0]
        assert (entry.rank, entry.top[0]) == (1, (entry.token_id, entry.logprob))
        assert len(entry.top) == 3
    assert next(iter(engine.stream("abc", params()))).logprobs is None


# ---------------------------------------------------------------- abort


def test_closing_a_stream_cancels_and_frees(tiny):
    engine = engine_of(tiny)
    stream = engine.stream("hello", params(max_tokens=50))
    next(stream)
    assert engine.scheduler.num_blocks_used > 0
    stream.close()
    assert (engine.scheduler.num_blocks_used, engine.has_work) == (0, False)
    (record,) = engine.trace.requests.values()
    assert (record.outcome, record.finish_reason, len(record.events)) == ("cancelled", "abort", 1)


def test_abort_in_every_state(tiny):
    engine = engine_of(tiny, max_num_seqs=1, max_num_batched_tokens=8)
    running = engine.add(list(range(40)), params())
    waiting = engine.add("wait", params())
    engine.step()
    assert engine.abort(waiting) is True
    assert engine.abort(waiting) is False
    assert engine.abort("nobody") is False
    engine.step()
    assert engine.abort(running) is True  # in the middle of its prompt
    assert engine.scheduler.num_blocks_used == 0
    decoding = engine.add("abc", params())
    first = engine.step()
    assert len(first) == 1
    assert engine.abort(decoding) is True
    assert engine.step() == []
    outcomes = [r.outcome for r in engine.trace.requests.values()]
    assert outcomes == ["cancelled"] * 3


def test_abort_during_the_forward_pass_drops_the_token(tiny):
    engine: Engine

    def aborting(q, k_cache, v_cache, batch):
        if armed:
            engine.abort(armed.pop())
        return paged_attention(q, k_cache, v_cache, batch)

    armed: list[str] = []
    engine = Engine(tiny, CONFIG, attention=aborting)
    gone = engine.add("first", params())
    stays = engine.add("second", params())
    engine.step()
    armed.append(gone)
    assert [o.request_id for o in engine.step()] == [stays]
    assert [o.request_id for o in engine.step()] == [stays]
    assert engine.abort(stays)
    assert engine.scheduler.num_blocks_used == 0


def test_abort_from_another_thread_is_done_within_the_step(tiny):
    entered, release = threading.Event(), threading.Event()

    def slow(q, k_cache, v_cache, batch):
        entered.set()
        release.wait(5)
        return paged_attention(q, k_cache, v_cache, batch)

    engine = Engine(tiny, CONFIG, attention=slow)
    name = engine.add("hello", params(max_tokens=50))
    outputs = []
    worker = threading.Thread(target=lambda: outputs.extend(engine.step()))
    worker.start()
    assert entered.wait(5)
    before = time.monotonic()
    assert engine.abort(name) is True
    assert time.monotonic() - before < 1  # it does not wait for the step
    release.set()
    worker.join(5)
    assert outputs == []
    assert (engine.scheduler.num_blocks_used, engine.has_work) == (0, False)


def test_a_request_that_comes_during_a_step_waits_for_its_end_and_counts_the_wait(tiny):
    arrived, still_waits = threading.Event(), []

    def clock():
        if threading.current_thread() is newcomer:
            arrived.set()
        return time.perf_counter_ns()

    def add_late():
        engine.add("late", params(), request_id="late", t_send=0)

    def slow(q, k_cache, v_cache, batch):
        if not still_waits:
            newcomer.start()
            arrived.wait(5)
            newcomer.join(0.02)
            still_waits.append(newcomer.is_alive())
        return paged_attention(q, k_cache, v_cache, batch)

    newcomer = threading.Thread(target=add_late)
    engine = Engine(tiny, CONFIG, attention=slow, clock=clock)
    engine.add("early", params(), request_id="early")
    engine.step()
    newcomer.join(5)
    assert still_waits == [True]
    engine.step()
    first, second = engine.trace.steps
    late = engine.trace.requests["late"]
    assert first.t_start < late.t_queued < first.t_end
    assert [[name for name, *_ in s.scheduled] for s in (first, second)] == [
        ["early"],
        ["early", "late"],
    ]
    assert late.t_first_scheduled == second.t_start >= first.t_end


def test_threads_that_stream_and_cancel_at_will_leave_nothing(tiny):
    engine = engine_of(tiny)
    lengths: dict[int, int] = {}

    def reader(n):
        stream = engine.stream(f"reader {n}", params(max_tokens=12))
        lengths[n] = sum(1 for _ in itertools.islice(stream, 12 if n % 2 else 3))
        stream.close()

    threads = [threading.Thread(target=reader, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert lengths == {n: 12 if n % 2 else 3 for n in range(6)}
    assert (engine.scheduler.num_blocks_used, engine.has_work) == (0, False)
    engine.scheduler.check_integrity()


# ---------------------------------------------------------------- refusals

BAD = [
    ({"prompt": ""}, r"prompt.*''.*at least one token"),
    ({"prompt": []}, r"prompt"),
    ({"prompt": [1, 259]}, r"token id = 259.*0\.\.258"),
    ({"prompt": [-1]}, r"token id = -1"),
    ({"prompt": [1.5]}, r"token id = 1\.5"),
    ({"prompt": [True]}, r"token id = True"),
    ({"prompt": [1], "params": {"temperature": 1}}, r"params"),
    ({"prompt": [1], "priority": 1.5}, r"priority = 1\.5"),
    ({"prompt": [1], "params": SamplingParams(stop_token_ids=[999])}, r"999"),
    ({"prompt": [1] * 128}, r"128"),
    ({"prompt": [1] * 100, "params": SamplingParams(max_tokens=29)}, r"max_tokens.*28"),
    ({"prompt": [1], "params": SamplingParams(max_tokens=2**31 - 1)}, r"max_tokens"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_is_refused_by_name_and_the_engine_goes_on(tiny, arguments, message):
    engine = engine_of(tiny)
    other = engine.add("good", params())
    engine.step()
    with pytest.raises(ValueError, match=message):
        engine.add(**arguments)
    (outs,) = run(engine, [other])
    assert outs[-1].finish_reason == "length"
    refused = [r for r in engine.trace.requests.values() if r.outcome == "rejected"]
    assert len(refused) == 1
    assert refused[0].reason
    assert refused[0].t_end is not None
    assert refused[0].t_queued is None


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": math.nan},
        {"temperature": -1},
        {"max_tokens": 0},
        {"max_tokens": -1},
        {"max_tokens": 1.5},
        {"max_tokens": 2**40},
        {"top_p": 0},
        {"stop": [""]},
    ],
)
def test_bad_parameters_name_their_field(fields):
    (name,) = fields
    with pytest.raises(ValueError, match=name):
        SamplingParams(**fields)


def test_a_used_id_is_refused_and_the_first_request_keeps_its_record(tiny):
    engine = engine_of(tiny)
    engine.add("one", params(), request_id="a")
    for _ in range(2):
        with pytest.raises(ValueError, match="request_id = 'a'"):
            engine.add("two", params(), request_id="a")
    outputs = run(engine)
    assert len(outputs["a"]) == 6
    assert engine.trace.requests["a"].outcome == "completed"
    with pytest.raises(ValueError, match="request_id"):
        engine.add("again", params(), request_id="a")
    assert [r.outcome for r in engine.trace.requests.values()] == ["completed"] + ["rejected"] * 3


@pytest.mark.parametrize("prompt", [[1] * 128, [1, 2, 999], "a" * 500])
def test_a_refused_request_keeps_the_length_of_its_prompt(tiny, prompt):
    engine = engine_of(tiny)
    with pytest.raises(ValueError, match=r"Request|tokens"):
        engine.add(prompt, request_id="a")
    ids = engine.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    assert engine.trace.requests["a"].prompt_tokens == len(ids)


def test_a_context_beyond_the_models_is_refused(tiny):
    with pytest.raises(ValueError, match=r"max_model_len = 9000.*8192"):
        engine_of(tiny, max_model_len=9000)


def test_a_wrong_attention_is_refused(tiny):
    with pytest.raises(ValueError, match="attention = 'flash'"):
        Engine(tiny, CONFIG, attention="flash")


def test_an_attention_that_gives_nan_is_named(tiny):
    engine = Engine(tiny, CONFIG, attention=lambda q, k, v, batch: q * math.nan)
    with pytest.raises(ValueError, match="not finite"):
        list(engine.stream("abc"))
    assert engine.scheduler.num_blocks_used == 0


def test_a_scheduler_can_be_given_made_or_unmade(tiny):
    made = Engine(tiny, scheduler=Chunked(CONFIG))
    unmade = Engine(tiny, CONFIG, scheduler=Chunked)
    assert made.config == unmade.config == CONFIG
    results = [tokens_of(list(e.stream("hello", params()))) for e in (made, unmade)]
    assert results[0] == results[1]
    with pytest.raises(ValueError, match="scheduler's own"):
        Engine(tiny, EngineConfig(), scheduler=Chunked(CONFIG))


# ---------------------------------------------------------------- the record


def test_the_trace_tells_the_whole_story(tiny):
    ticks = itertools.count(1000, 10)
    engine = Engine(tiny, CONFIG.with_(max_num_batched_tokens=8), clock=lambda: next(ticks))
    name = engine.add("0123456789", params(max_tokens=3), class_name="chat", t_sched=5, t_send=7)
    other = engine.add("xy", params(max_tokens=2))
    run(engine)
    record = engine.trace.requests[name]
    assert (record.class_name, record.t_sched, record.t_send) == ("chat", 5, 7)
    assert (record.prompt_tokens, record.max_tokens, record.completion_tokens) == (10, 3, 3)
    assert record.t_send < record.t_queued < record.t_first_scheduled < record.events[0].t
    assert record.t_end == record.events[-1].t
    assert [e.k for e in record.events] == [1, 1, 1]
    assert (record.outcome, record.finish_reason) == ("completed", "length")
    assert engine.trace.requests[other].t_send < engine.trace.requests[other].t_queued
    steps = engine.trace.steps
    assert steps[0].scheduled == [(name, 8, 0, False)]
    assert steps[1].scheduled == [(name, 2, 8, False), (other, 2, 0, False)]
    assert steps[2].scheduled == [(name, 1, 10, True), (other, 1, 2, True)]
    assert steps[3].scheduled == [(name, 1, 11, True)]
    assert [s.index for s in steps] == [0, 1, 2, 3]
    assert steps[0].blocks_used == 2
    assert steps[-1].blocks_used == steps[-1].num_running == steps[-1].num_waiting == 0
    assert all(a.t_end <= b.t_start for a, b in itertools.pairwise(steps))


def test_preemption_is_recorded_with_both_ends(tiny):
    engine = engine_of(tiny, num_blocks=3, max_num_batched_tokens=8)
    engine.add([1, 2, 3, 4], params(max_tokens=5))
    second = engine.add([5, 6, 7, 8], params(max_tokens=5))
    run(engine)
    (pair,) = engine.trace.requests[second].preemptions
    assert pair[1] is not None
    assert pair[0] < pair[1]
    assert sum(len(s.preempted) for s in engine.trace.steps) == 1
    assert len(engine.trace.requests[second].events) == 5


def test_the_trace_survives_a_file(tiny, tmp_path):
    engine = engine_of(tiny)
    list(engine.stream("hello", params()))
    engine.trace.write_jsonl(tmp_path / "t.jsonl")
    from llmlab.trace import Trace

    back = Trace.read_jsonl(tmp_path / "t.jsonl")
    assert back.requests == engine.trace.requests
    assert back.steps == engine.trace.steps


@pytest.mark.slow
def test_importing_the_package_of_the_engine_does_not_import_torch():
    import subprocess
    import sys

    code = "import sys, llmlab.engine, llmlab.engine.recorder; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""One chat alone and in company, on the real engine: which of the four numbers notices?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from llmlab.config import EngineConfig
from llmlab.engine import Engine
from llmlab.engine.model import Model
from llmlab.measure.per_request import request_metrics
from llmlab.sched import SamplingParams
from llmlab.trace import Trace
from llmlab.viz.show import Shown, number, shown_table

CHAT = "chat"


class Guest(NamedTuple):
    """A request that comes when the chat has `after` of its tokens (0: together with it)."""

    after: int
    prompt_tokens: int
    output_tokens: int


def serve(
    model: Model,
    output_tokens: int,
    guests: Sequence[Guest] = (),
    *,
    prompt_tokens: int = 40,
    max_num_seqs: int = 8,
) -> Trace:
    """Serve a chat (request "chat") and its guests ("guest 1" ...); whole prompts in one step."""
    everyone = [Guest(0, prompt_tokens, output_tokens), *guests]
    longest = max(one.prompt_tokens + one.output_tokens for one in everyone)
    config = EngineConfig(
        max_num_batched_tokens=max(512, longest), max_num_seqs=max_num_seqs, max_model_len=longest
    )
    engine = Engine(model, config)
    waiting = [(f"guest {i}", guest) for i, guest in enumerate(guests, 1)]
    _add(engine, CHAT, prompt_tokens, output_tokens)
    told = 0  # tokens of the chat
    while waiting or engine.has_work:
        for name, guest in [w for w in waiting if w[1].after <= told or not engine.has_work]:
            _add(engine, name, guest.prompt_tokens, guest.output_tokens)
            waiting.remove((name, guest))
        told += sum(out.request_id == CHAT for out in engine.step())
    return engine.trace


def clock(
    wait: float, preprocessing: float, prefill: float, tokens: int, gap: float
) -> tuple[float, float]:
    """TTFT and E2E, both in ms, of a request with equal gaps, one token per gap."""
    before = wait + preprocessing + prefill
    return before, before + (tokens - 1) * gap


def _add(engine: Engine, name: str, prompt_tokens: int, output_tokens: int) -> None:
    vocabulary = engine.model.config.vocab_size
    ids = [(len(name) + 31 * i) % vocabulary for i in range(prompt_tokens)]
    params = SamplingParams(max_tokens=output_tokens, ignore_eos=True)
    engine.add(ids, params, request_id=name)


def output_rate(trace: Trace) -> float:
    """Output tokens/s of the whole server, from the first send to the last token."""
    records = trace.requests.values()
    begun = min(record.t_send for record in records if record.t_send is not None)
    ended = max(record.events[-1].t for record in records)
    return 1e9 * sum(len(record.events) for record in records) / (ended - begun)


NUMBERS_HEAD = ["the chat is", "TTFT ms", "TPOT ms", "longest ITL ms", "server tokens/s"]


def show_company(traces: Mapping[str, Trace]) -> Shown:
    """The chat's four numbers in each situation; one request, so the longest gap is the tail."""
    rows = []
    for label, trace in traces.items():
        m = request_metrics(trace.requests[CHAT])
        figures = [m.ttft, m.tpot, max(m.itl) if m.itl else None, output_rate(trace)]
        rows.append([label, *map(number, figures)])
    return shown_table("Four numbers of one chat, measured", NUMBERS_HEAD, rows)


PARTS_HEAD = ["request", "preprocessing", "queue", "prefill", "TTFT", "gaps", "mean gap", "E2E"]


def show_clock(trace: Trace) -> Shown:
    """Each request's E2E in parts, ms; TTFT = the three before it, E2E = TTFT + gaps x mean gap."""
    rows = []
    for name, record in trace.requests.items():
        m = request_metrics(record)
        before = map(number, (m.preprocessing, m.queue, m.prefill, m.ttft))
        gaps = str((m.n or 1) - 1)
        rows.append([name, *before, gaps, number(m.tpot, 2), number(m.e2e)])
    return shown_table("Where each request's time went, ms, measured", PARTS_HEAD, rows)

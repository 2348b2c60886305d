"""One worker's process: load the model, join the pair, work, report.

    python -m llmlab.engine.pair.process SIDE STORE      job as one line of JSON on stdin

Events are JSON lines on stdout. When stdin ends the parent is gone, and so is this process.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from llmlab.engine import Engine, Model, load_model
from llmlab.engine.cuda_memory import bytes_per_block
from llmlab.engine.pair.decode_worker import DecodeWorker
from llmlab.engine.pair.job import PairJob
from llmlab.engine.pair.link import DECODE, PREFILL, connect, file_store
from llmlab.engine.pair.prefill_worker import PrefillWorker
from llmlab.sched.request import SamplingParams

Emit = Callable[[dict[str, Any]], None]
RANKS = {"prefill": PREFILL, "decode": DECODE}
RENDEZVOUS_S = 120.0


def work(side: str, job: PairJob, store: Any, emit: Emit) -> dict[str, Any]:
    """One side of the pair, from the weights to its report."""
    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))  # half of the machine each
    device = "cpu"
    if job.backend == "nccl":  # never run so far: it needs two GPUs
        device = f"cuda:{RANKS[side]}"
        torch.cuda.set_device(RANKS[side])

    def loading(done: int, total: int, what: str) -> None:
        emit({"event": "loading", "done": done, "total": total})

    dtype = getattr(torch, job.dtype)
    model = load_model(job.model, dtype=dtype, device=device, exact=True, progress=loading)
    emit({"event": "ready"})
    with connect(RANKS[side], store, job.timeout_s, RENDEZVOUS_S, job.backend) as link:
        if side == "prefill":
            prefill = PrefillWorker(model, job, link)
            return prefill.report(prefill.run())
        decode = DecodeWorker(model, job, link, emit)
        emit({"event": "about", "about": about(model, job)})
        decode.run()
        report = decode.report()
        texts = {name: model.tokenizer.decode(ids) for name, ids in decode.tokens.items()}
    del decode
    colocated = run_colocated(model, job, emit) if job.compare else None
    return {**report, "texts": texts, "colocated": colocated}


def about(model: Model, job: PairJob) -> dict[str, Any]:
    """What a reader of the result must know even if this worker dies."""
    encode = model.tokenizer.encode
    return {
        "model": model.config.name,
        "dtype": job.dtype,
        "kv_bytes_per_token": bytes_per_block(model.config, 1, model.kv_dtype.itemsize),
        "prompt_tokens": {
            f"req-{i}": len(encode(prompt) if isinstance(prompt, str) else prompt)
            for i, prompt in enumerate(job.prompts)
        },
    }


def run_colocated(model: Model, job: PairJob, emit: Emit) -> dict[str, Any]:
    """The same prompts at once on one engine, with this worker's threads: tokens, margins, trace.

    Not with all cores: on a busy machine threads that wait for each other cost many times what
    they bring, and what is compared here are tokens.
    """
    engine = Engine(model, job.config)
    params = SamplingParams(max_tokens=job.max_tokens, logprobs=2)
    tokens: dict[str, list[tuple[int, float]]] = {}
    for i, prompt in enumerate(job.prompts):
        tokens[f"req-{i}"] = []
        try:
            engine.add(prompt, params, request_id=f"req-{i}")
        except ValueError:
            continue  # the pair refused it with the same words
    while engine.has_work:
        outputs = engine.step()
        for output in outputs:
            (chosen,) = output.logprobs or []
            (_, best), (_, second) = chosen.top
            tokens[output.request_id].append((chosen.token_id, best - second))
        emit({"event": "compared", "tokens": len(outputs)})
    return {"tokens": list(tokens.values()), "trace": list(engine.trace.jsonl_lines())}


def main(side: str, store: str) -> None:
    job = PairJob.from_json(sys.stdin.readline())
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    lock = threading.Lock()

    def emit(event: dict[str, Any]) -> None:
        with lock:
            sys.stdout.write(json.dumps(event) + "\n")
            sys.stdout.flush()

    try:
        report = work(side, job, file_store(Path(store)), emit)
    except ValueError as error:
        emit({"event": "refused", "reason": str(error)})
        raise SystemExit(2) from None
    emit({"event": "report", "report": report})


def _leave_with_parent() -> None:
    while sys.stdin.readline():
        pass
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])

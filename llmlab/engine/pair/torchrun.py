"""A pair started by torch's launcher instead of by `run_pair`: rank 0 prefills, rank 1 decodes.

    torchrun --nproc-per-node 2 -m llmlab.engine.disaggregated --prompt "..." --json

Rank 1 prints the result. The launcher ends the other rank when one is lost, so a pair that should
outlive its prefill worker is started by `llmlab disagg`. The launcher's own meeting point listens
on all interfaces of the machine; everything between the two ranks stays on loopback.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from llmlab.engine.pair.job import DEFAULT_PROMPTS, LOCAL_BELOW, TIMEOUT_S, PairJob
from llmlab.engine.pair.result import pair_result
from llmlab.engine.pair.summary import sentences

REPORT_S = 30.0


def parse(argv: Sequence[str] | None = None) -> tuple[PairJob, bool]:
    """The job, and whether JSON is wanted."""
    parser = argparse.ArgumentParser(
        prog="torchrun --nproc-per-node 2 -m llmlab.engine.disaggregated", description=__doc__
    )
    add = parser.add_argument
    add("--model", default="smollm2-135m")
    add("--prompt", action="append", help="may be repeated; a few of several lengths if absent")
    add("--max-tokens", type=int, default=32)
    add("--local-below", type=int, default=LOCAL_BELOW, help="shorter prompts are not moved")
    add("--timeout", type=float, default=TIMEOUT_S, help="seconds of silence")
    add("--dtype", default="float32", help="float32 or float64")
    add("--backend", default="gloo", help="gloo (CPU) or nccl (two GPUs; never run so far)")
    add("--json", action="store_true")
    given = parser.parse_args(argv)
    try:
        job = PairJob(
            model=given.model,
            prompts=given.prompt or list(DEFAULT_PROMPTS),
            max_tokens=given.max_tokens,
            local_below=given.local_below,
            timeout_s=given.timeout,
            dtype=given.dtype,
            backend=given.backend,
        )
    except ValueError as error:
        parser.error(str(error))
    return job, given.json


def place(environment: Mapping[str, str]) -> tuple[str, str, int]:
    """(side, host, port) that the launcher gave this process; ValueError if it is no pair."""
    try:
        rank, world = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    except (KeyError, ValueError) as error:
        raise ValueError(
            "not started by torchrun. Run: torchrun --nproc-per-node 2 -m "
            "llmlab.engine.disaggregated, or: llmlab disagg"
        ) from error
    if world != 2:
        raise ValueError(f"{world} processes: a pair has 2 (--nproc-per-node 2)")
    if not _is_loopback(host):
        raise ValueError(f"MASTER_ADDR = {host}: must be this machine's loopback, 127.0.0.1")
    return ("prefill", "decode")[rank], host, port


def _is_loopback(host: str) -> bool:
    try:
        return socket.gethostbyname(host).startswith("127.")
    except OSError:
        return False


def main(argv: Sequence[str] | None = None) -> None:
    job, as_json = parse(argv)
    try:
        side, host, port = place(os.environ)
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None
    import torch.distributed as dist

    from llmlab.engine.pair.process import work

    store = dist.TCPStore(  # type: ignore[attr-defined]
        host, port, is_master=False, timeout=timedelta(seconds=REPORT_S)
    )
    about: dict[str, Any] = {}

    def emit(event: dict[str, Any]) -> None:
        about.update(event.get("about", {}))

    report = work(side, job, store, emit)
    if side == "prefill":
        store.set("prefill-report", json.dumps(report))
        return
    there = json.loads(store.get("prefill-report"))
    ended = {"prefill": there["ended"], "decode": report["ended"]}
    about["texts"] = report["texts"]
    result = pair_result(about, there, report, report["colocated"], ended, {})
    print(json.dumps(result.to_dict()) if as_json else sentences(result))

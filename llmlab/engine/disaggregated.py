"""Prefill and decode apart, for real: two processes, two pools, keys and values on the wire.

    run_pair("smollm2-135m", ["a long prompt ...", "a short one"])        from Python or a notebook
    llmlab disagg                                                         from a shell
    torchrun --nproc-per-node 2 -m llmlab.engine.disaggregated --json     under torch's launcher

The decode worker takes every request. For a long prompt it takes blocks, asks the prefill worker,
receives the keys and values layer by layer, acknowledges, and decodes; see `pair.protocol` for the
order and `sched.remote_prefill` for who waits when. A short prompt stays where it is. If the
prefill worker is lost, the decode worker goes on alone; if the decode worker is lost, its requests
fail with that reason.

It does not know GPUs: between two of them torch.distributed's "nccl" would carry the same tensors,
which was never run. On one machine's cores two processes share what they compute with, so a pair
is no faster than one engine here; what can be measured is what moves, when, and who waits for it.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from llmlab.config import EngineConfig
from llmlab.engine.pair.job import DEFAULT_PROMPTS, LOCAL_BELOW, TIMEOUT_S, PairJob
from llmlab.engine.pair.result import MovedRequest, PairResult, QueuePoint, pair_result

__all__ = ["MovedRequest", "PairResult", "QueuePoint", "run_pair"]

SIDES = ("prefill", "decode")
START_S = 300.0  # most time for two processes to import torch and load a model
Progress = Callable[[int, int, str], None]


def run_pair(
    model: str = "smollm2-135m",
    prompts: Sequence[str | list[int]] = DEFAULT_PROMPTS,
    *,
    max_tokens: int = 32,
    config: EngineConfig | None = None,
    prefill_config: EngineConfig | None = None,
    local_below: int = LOCAL_BELOW,
    overlap: bool = True,
    timeout_s: float = TIMEOUT_S,
    dtype: Any = None,
    arrivals: Sequence[float] | None = None,
    compare: bool = True,
    kill: str | None = None,
    progress: Progress | None = None,
) -> PairResult:
    """Serve prompts greedily with a prefill and a decode worker; both are gone when this returns.

    model: what `load_model` takes. config: of the decode worker (and of the colocated engine that
    the tokens are compared with); prefill_config: of the prefill worker, the same if None.
    local_below: a prompt with fewer tokens to compute than this stays on the decode worker.
    overlap: send a layer while the next is computed; False sends all layers after each step's pass.
    timeout_s: silence after which a transfer, then the other worker, is given up. dtype: "float32"
    (None) or "float64", plain weights. arrivals: second at which each prompt comes; None: all at
    once. compare: run the prompts on one engine afterwards. kill: break the pair on purpose, see
    `pair.fault.Fault`. progress(done, total, what).

    ValueError for bad input, RuntimeError with a worker's last words if the pair cannot start. A
    worker that is lost later is no exception: rows say `outcome` and `reason`.
    """
    same = config or EngineConfig()
    job = PairJob(
        model=model,
        prompts=list(prompts),
        max_tokens=max_tokens,
        config=same,
        prefill_config=prefill_config or same,
        local_below=local_below,
        overlap=overlap,
        timeout_s=timeout_s,
        dtype=str(dtype or "float32").removeprefix("torch."),
        arrivals=None if arrivals is None else list(arrivals),
        compare=compare,
        kill=kill,
    )
    with tempfile.TemporaryDirectory(prefix="llmlab-pair-") as folder:
        pair = _Pair(job, Path(folder), progress)
        try:
            pair.watch()
        finally:
            pair.stop()
        return pair.result()


class _Worker:
    """A child process: its events, its last words, its report if it gave one."""

    def __init__(self, side: str, job: PairJob, store: Path, events: queue.Queue[Any]) -> None:
        self.side = side
        self.report: dict[str, Any] | None = None
        self.refused: str | None = None  # bad input that only it could see, in its words
        # A file, not a pipe: who warns a lot must never wait for a reader.
        self.log: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        command = [sys.executable, "-m", "llmlab.engine.pair.process", side, str(store)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            start_new_session=True,  # Ctrl-C reaches the parent; it ends both itself
        )
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died at once: its log says why
            self.process.stdin.write(job.to_json() + "\n")
            self.process.stdin.flush()
        self._thread = threading.Thread(target=self._read, args=(events,), daemon=True)
        self._thread.start()

    def _read(self, events: queue.Queue[Any]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):  # a library that prints says nothing to us
                events.put((self, json.loads(line)))
        self.process.wait()
        events.put((self, {"event": "exit"}))

    def stop(self) -> None:
        """Dead and reaped when this returns."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._thread.join()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self.log.close()

    def said(self) -> str:
        """The end of what it wrote to stderr."""
        self.log.seek(0)
        return self.log.read().strip()[-800:]

    def ended(self) -> str:
        """How, in words."""
        if self.report is not None:
            return str(self.report["ended"])
        if self.refused is not None:
            return self.refused
        code = self.process.poll()
        if code is None:
            return "it did not answer and was stopped"
        if code < 0:
            return f"it was killed by signal {-code}"
        said = self.said().splitlines()
        return f"it ended with status {code}" + (f": {said[-1]}" if said else "")


class _Pair:
    """Both workers, watched until they are done."""

    def __init__(self, job: PairJob, folder: Path, progress: Progress | None) -> None:
        self.job = job
        self.progress = progress or (lambda done, total, what: None)
        self.events: queue.Queue[Any] = queue.Queue()
        self.about: dict[str, Any] | None = None
        self.partial: dict[str, list[int]] = {}
        self.over: set[str] = set()
        self.ended: dict[str, str] = {}
        self._loaded: dict[str, tuple[int, int]] = {}
        self._tokens = self._compared = 0
        self.workers: list[_Worker] = []
        try:
            for side in SIDES:
                self.workers.append(_Worker(side, job, folder / "store", self.events))
        except BaseException:
            self.stop()
            raise

    def watch(self) -> None:
        """Until both have ended, or one of them is silent for too long."""
        last = time.monotonic()
        silence = max(60.0, 4 * self.job.timeout_s)
        while any(worker.side not in self.ended for worker in self.workers):
            allowed = START_S if self.about is None else silence
            # A worker that outlives the other one only has to notice and to report.
            if "decode" in self.ended:
                allowed = 3 * self.job.timeout_s
            try:
                worker, event = self.events.get(timeout=0.2)
            except queue.Empty:
                if time.monotonic() - last > allowed:
                    self._end_silent()
                continue
            last = time.monotonic()
            self._on(worker, event)

    def _on(self, worker: _Worker, event: dict[str, Any]) -> None:
        kind = event.get("event")
        if kind == "exit":
            self.ended[worker.side] = worker.ended()
            self._check_started(worker)
        elif kind == "report":
            worker.report = event["report"]
        elif kind == "refused":
            worker.refused = event["reason"]
        elif kind == "about":
            self.about = event["about"]
            self.partial = {name: [] for name in event["about"]["prompt_tokens"]}
        elif kind == "tokens":
            self.over |= set(event["over"])
            for name, ids in event["got"].items():
                self.partial[name] += ids
                self._tokens += len(ids)
            self.progress(self._tokens, self._total(), "decoding")
        elif kind == "compared":
            self._compared += event["tokens"]
            self.progress(self._compared, self._total(), "comparing with one engine")
        elif kind == "loading":
            self._loaded[worker.side] = event["done"], event["total"]
            done, total = (sum(pair) for pair in zip(*self._loaded.values(), strict=True))
            self.progress(done, total * 2 // len(self._loaded), "loading both workers")

    def _total(self) -> int:
        return len(self.job.prompts) * self.job.max_tokens

    def _check_started(self, worker: _Worker) -> None:
        """A worker that ends before there is a pair is an error, not a fault to live with."""
        if self.about is None and worker.report is None:
            if worker.refused is not None:
                raise ValueError(worker.refused)
            raise RuntimeError(f"the {worker.side} worker did not start: {worker.ended()}")

    def _end_silent(self) -> None:
        for worker in self.workers:
            if worker.side not in self.ended:
                self.ended[worker.side] = worker.ended()
                worker.process.kill()
                self._check_started(worker)

    def stop(self) -> None:
        for worker in self.workers:
            worker.stop()

    def result(self) -> PairResult:
        reports = {worker.side: worker.report for worker in self.workers}
        assert self.about is not None
        decode = reports["decode"]
        return pair_result(
            {**self.about, "texts": decode["texts"] if decode else {}},
            reports["prefill"],
            decode,
            decode["colocated"] if decode else None,
            self.ended,
            self.partial,
            self.over,
        )


if __name__ == "__main__":
    from llmlab.engine.pair.torchrun import main

    main()

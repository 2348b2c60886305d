"""The part of the engine that the server drives: a tiny fake of it states the server's laws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from llmlab.config import EngineConfig
from llmlab.sched.request import SamplingParams
from llmlab.trace import Trace


class Output(Protocol):
    """What the engine says of one request after one step. t: when, in ns of its clock."""

    request_id: str
    token_ids: list[int]
    text: str
    t: int
    finish_reason: str | None
    stop_reason: int | str | None
    logprobs: Any


class Counts(Protocol):
    """The scheduler's gauges."""

    @property
    def num_running(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def num_blocks_used(self) -> int: ...


class EngineLike(Protocol):
    """What the server calls and reads of an engine."""

    config: EngineConfig
    trace: Trace
    tokenizer: Any

    @property
    def scheduler(self) -> Counts: ...
    @property
    def has_work(self) -> bool: ...
    def add(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        class_name: str = "default",
        t_sched: int | None = None,
        t_send: int | None = None,
        t_queued: int | None = None,
    ) -> str: ...
    def step(self) -> Sequence[Output]: ...
    def abort(self, request_id: str) -> Any: ...

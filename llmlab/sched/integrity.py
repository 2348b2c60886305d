"""The laws of the scheduler's lists, cheap enough to be checked at every step of a test."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from llmlab.sched.request import Request, RequestStatus

if TYPE_CHECKING:
    from llmlab.sched.base import BaseScheduler


def check(scheduler: BaseScheduler, arriving: Iterable[Request] = ()) -> None:
    """Raise RuntimeError with the first law that is broken.

    arriving: requests that hold blocks which another worker fills, see `remote_prefill`.
    """
    decoding, prefilling, coming = scheduler.decoding, scheduler.prefilling, list(arriving)
    running, waiting = [*decoding, *prefilling], list(scheduler.waiting)
    scheduler.blocks.check_integrity(r.block_ids for r in (*running, *coming))
    seats = scheduler.config.max_num_seqs - len(coming)
    _law(len(running) <= seats, "more running than max_num_seqs")
    listed = {r.request_id: r for r in (*running, *waiting, *coming)}
    _law(len(listed) == len(running) + len(waiting) + len(coming), "a request in two lists")
    _law(listed == scheduler._alive, "the lists and the live requests differ")
    for request in running:
        name, slots = request.request_id, len(request.block_ids) * scheduler.config.block_size
        _law(request.status is RequestStatus.RUNNING, f"{name} runs but is {request.status}")
        _law(request.num_computed_tokens <= slots, f"{name} has tokens without a slot")
        _law(request.num_missing_tokens > 0, f"{name} runs with nothing to compute")
    for request in waiting:
        idle = not request.block_ids and request.num_computed_tokens == 0
        _law(idle and not request.finished, f"{request.request_id} waits but holds something")
    for request in coming:
        idle = request.num_computed_tokens == 0 and not request.output_token_ids
        _law(idle and not request.finished, f"{request.request_id} arrives but has run")
        need = scheduler.blocks.blocks_for(request.num_prompt_tokens)
        _law(len(request.block_ids) == need, f"{request.request_id} arrives without its blocks")
    for group, decodes in ((decoding, True), (prefilling, False)):
        _law(all(r.decodes == decodes for r in group), "a running request in the wrong list")
        order = [r.admission for r in group]
        _law(order == sorted(order), "a list out of the order of admission")


def _law(holds: bool, text: str) -> None:
    if not holds:
        raise RuntimeError(text)

"""Chunked prefill: every step mixes one token for each decode with pieces of prompts.

A long prompt costs many steps a little instead of one step a lot, so running answers keep their
pace. This is how vLLM V1 schedules, but for the order in which running requests are served.
"""

from __future__ import annotations

from typing import Literal

from llmlab.config import EngineConfig, require
from llmlab.sched.base import BY_ADMISSION, BaseScheduler
from llmlab.sched.plan import StepPlan

Order = Literal["decode_first", "admission"]


class Chunked(BaseScheduler):
    """order: whom a short budget serves first among the running.

    "decode_first": all decodes, then prompts. "admission": one walk in order of admission as in
    vLLM V1, where an old prompt can take the budget from younger decodes. (Under "priority" vLLM
    also ends that walk with the first request that had to go itself; here the next are served.)
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        vocab_size: int | None = None,
        order: Order = "decode_first",
    ) -> None:
        allowed = "'decode_first' or 'admission'"
        require(order in ("decode_first", "admission"), "Chunked", "order", order, allowed)
        super().__init__(config, vocab_size=vocab_size)
        self.order = order

    def _fill(self, step: StepPlan) -> None:
        walk = [*self.decoding, *self.prefilling]
        if self.order == "admission" and self.prefilling:
            walk.sort(key=BY_ADMISSION)
        elif self._decode_all(step):
            walk = self.prefilling
        self._serve_running(step, walk)
        if not step.preempted:
            self._admit_waiting(step)

    def _chunk(self, missing: int, budget: int) -> int:
        limit = self.config.long_prefill_token_threshold or missing
        return min(missing, limit, budget)

"""Continuous batching: requests come and go at every step, but a prompt is never cut.

Waiting prompts go first and have a step to themselves, so every running answer stalls while they
are computed: short queues, long gaps. (Orca, OSDI 2022, brought the idea of scheduling each
iteration; vLLM before V1 put prompts first in this way.)
"""

from __future__ import annotations

from llmlab.sched.base import BaseScheduler
from llmlab.sched.door import Limit
from llmlab.sched.plan import StepPlan
from llmlab.sched.request import RequestStatus


class Continuous(BaseScheduler):
    """Whole prompts first; without any, one token for each decode."""

    def _limits(self) -> list[Limit]:
        # After a preemption all but the last token is computed again, whole, in one step.
        most = self.config.max_num_batched_tokens
        why = f"max_num_batched_tokens = {most}, and prompts are not cut"
        return [*super()._limits(), Limit(most, most + 1, why)]

    def _fill(self, step: StepPlan) -> None:
        self._admit_waiting(step)
        if not step.scheduled and not self._decode_all(step):
            self._decode_each(step)

    def _admit_waiting(self, step: StepPlan) -> None:
        while self._may_admit(step.budget):
            request = self.waiting.head
            hits = self.blocks.lookup(request)
            n = request.num_tokens - len(hits) * self.config.block_size
            if n > step.budget or self._admit(step, hits, request.num_tokens) is None:
                break  # nobody overtakes the head of the queue
            self._give(step, request, n)

    def _decode_each(self, step: StepPlan) -> None:
        for request in list(self.decoding):
            if step.budget and request.status is RequestStatus.RUNNING:
                self._serve(step, request, 1)

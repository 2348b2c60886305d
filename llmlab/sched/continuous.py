"""Continuous batching: requests come and go at every step, but a prompt is never cut.

Waiting prompts go first and have a step to themselves, so every running answer stalls while they
are computed: short queues, long gaps. (Orca, OSDI 2022, brought the idea of scheduling each
iteration; vLLM before V1 put prompts first in this way.)
"""

from __future__ import annotations

from llmlab.sched.base import BaseScheduler
from llmlab.sched.door import Limit
from llmlab.sched.plan import StepPlan


class Continuous(BaseScheduler):
    """Whole prompts first; without any, one token for each decode."""

    def _limits(self) -> list[Limit]:
        # After a preemption all but the last token is computed again, whole, in one step.
        most = self.config.max_num_batched_tokens
        why = f"max_num_batched_tokens = {most}, and prompts are not cut"
        return [*super()._limits(), Limit(most, most + 1, why)]

    def _fill(self, step: StepPlan) -> None:
        self._serve_running(step, self.prefilling)  # only after a step that failed
        self._admit_waiting(step)
        if not step.scheduled and not self._decode_all(step):
            self._serve_running(step, self.decoding)

    def _chunk(self, missing: int, budget: int) -> int:
        return missing if missing <= budget else 0

    def _may_begin(self, budget: int) -> bool:
        return super()._may_begin(self.config.max_num_batched_tokens)  # prompts go first
